"""samples.py N: N samples of 48 features; scales, projects, clusters and classifies them; prints
the results."""

import sys

import numpy
from sklearn.cluster import MiniBatchKMeans
from sklearn.decomposition import PCA
from sklearn.linear_model import SGDClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier


def main():
    """Makes the samples and asks."""
    count = int(sys.argv[1])
    dice = numpy.random.RandomState(1)
    labels = dice.randint(0, 8, count)
    centers = dice.normal(size=(8, 48))
    samples = centers[labels] + dice.normal(size=(count, 48))
    scaled = StandardScaler().fit_transform(samples)
    projected = PCA(8, svd_solver="randomized", random_state=1).fit_transform(scaled)
    print(numpy.round(projected.std(axis=0), 4))
    clusters = MiniBatchKMeans(8, n_init=1, batch_size=4096, random_state=1).fit(scaled)
    print(sorted(numpy.bincount(clusters.labels_)))
    linear = SGDClassifier(max_iter=3, tol=None, random_state=1).fit(scaled, labels)
    print(round(linear.score(scaled, labels), 4))
    tree = DecisionTreeClassifier(max_depth=6, random_state=1).fit(projected, labels)
    print(round(tree.score(projected, labels), 4))


main()
