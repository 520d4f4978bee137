"""forest.py N: N samples of 32 features; a forest learns them in two threads, and two processes of
joblib check a linear model with them; prints how good both are.
"""

import sys

import numpy
from joblib import parallel_config
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import cross_val_score


def main():
    """Makes the samples and learns."""
    count = int(sys.argv[1])
    dice = numpy.random.default_rng(1)
    labels = dice.integers(0, 8, count)
    samples = dice.normal(size=(8, 32))[labels] + dice.normal(size=(count, 32))
    forest = RandomForestClassifier(4, max_depth=8, max_samples=0.2, n_jobs=2, random_state=1)
    forest.fit(samples, labels)
    print(round(forest.score(samples, labels), 6))
    linear = SGDClassifier(max_iter=2, tol=None, random_state=1)
    # Workers map the samples from a file: on the SSD, and not in /dev/shm, which is RAM.
    with parallel_config("loky", n_jobs=2, temp_folder="."):
        print(cross_val_score(linear, samples, labels, cv=2).round(6))


main()
