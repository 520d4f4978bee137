//! Results: the numbers of experiments, as pages and plots ask for them.
//!
//! Guarantees: every number comes from a record; a number that cannot be had is `None`.
//! Never: reads a record with other settings.

use super::experiments::{
    Case, Claim, Contender, Experiment, Form, Goal, Metric, Reach, THROUGHPUT,
};
use super::point::Point;
use super::runs::{Record, Runs};
use super::settings::Settings;

/// What is known.
#[derive(Clone, Debug)]
pub struct Results<'a> {
    runs: &'a Runs,
    settings: &'a Settings,
}

/// How a goal went.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// Its number or ratio; none if something is missing.
    pub reached: Option<f64>,
    /// Whether that is enough.
    pub passed: bool,
}

impl<'a> Results<'a> {
    /// Of a folder of runs.
    pub fn new(runs: &'a Runs, settings: &'a Settings) -> Self {
        Self { runs, settings }
    }

    /// With which settings.
    pub fn settings(&self) -> &Settings {
        self.settings
    }

    /// All that is known of a case under a contender.
    pub fn record(&self, case: &Case, contender: Contender) -> Record {
        let point = Point::of(case, contender);
        self.runs.load(&point.id(), &point.settings(self.settings))
    }

    /// A number of it.
    pub fn number(&self, case: &Case, contender: Contender, metric: &Metric) -> Option<f64> {
        self.record(case, contender).median(metric.name)
    }

    /// Cases of an experiment that are measured.
    pub fn cases(&self, experiment: &Experiment) -> Vec<&'static Case> {
        let measured = |case: &&Case| !case.contenders(self.settings.quick).is_empty();
        experiment.cases.iter().filter(measured).collect()
    }

    /// Contenders of an experiment that are measured in any of its cases.
    pub fn contenders(&self, experiment: &Experiment) -> Vec<Contender> {
        let runs = |contender: &Contender| {
            experiment.cases.iter().any(|c| c.contenders(self.settings.quick).contains(contender))
        };
        Contender::ALL.into_iter().filter(runs).collect()
    }

    /// Our least and our greatest number for a claim, over the cases it is about.
    pub fn ours(&self, experiment: &Experiment, claim: &Claim) -> Option<(f64, f64)> {
        let number = |case: &Case, who: Contender| self.number(case, who, claim.metric);
        let about = |case: &&Case| claim.at.is_empty() || claim.at.contains(&case.label);
        let cases: Vec<&Case> = experiment.cases.iter().filter(about).collect();
        if claim.form == Form::FirstToLast {
            let (first, last) = (cases.first()?, cases.last()?);
            let ratio = number(first, claim.of)? / number(last, claim.of)?;
            return Some((ratio, ratio));
        }
        let one = |case: &&Case| {
            let of = number(case, claim.of)?;
            let over = || number(case, claim.over).filter(|&over| over > 0.0);
            Some(match claim.form {
                Form::Plain | Form::FirstToLast => of,
                Form::Times => of / over()?,
                Form::PercentMore => 100.0 * (of / over()? - 1.0),
                Form::PercentLess => 100.0 * (1.0 - of / over()?),
                Form::Added => of - over()?,
            })
        };
        let values: Vec<f64> = cases.iter().filter_map(one).filter(|v| v.is_finite()).collect();
        let least = values.iter().copied().reduce(f64::min)?;
        Some((least, values.iter().copied().fold(least, f64::max)))
    }

    /// The best of those a goal is compared with, and its number; none if one of them has none.
    fn best(&self, goal: &Goal) -> Option<(Contender, f64)> {
        let runs = |who: &&Contender| goal.case.contenders(self.settings.quick).contains(who);
        let number = |&who: &Contender| Some((who, self.number(goal.case, who, goal.metric)?));
        let numbers: Option<Vec<_>> = goal.against.iter().filter(runs).map(number).collect();
        let is_better = |a: f64, b: f64| if goal.metric.more_is_better { a > b } else { a < b };
        numbers?.into_iter().reduce(|a, b| if is_better(b.1, a.1) { b } else { a })
    }

    /// 4 KiB reads of the device for each operation of whom the goal is about and of the best of
    /// those it is compared with in throughput. Their ratio is what objects could gain where
    /// nothing but reads takes time, as many at a time.
    pub fn reads(&self, goal: &Goal) -> Option<(f64, Contender, f64)> {
        if goal.metric != &THROUGHPUT {
            return None;
        }
        let (best, _) = self.best(goal)?;
        let reads = |who| self.record(goal.case, who).median("reads_per_operation");
        Some((reads(goal.of)?, best, reads(best)?))
    }

    /// How a goal went. If one of those it is compared with has no number, it has none.
    pub fn judge(&self, goal: &Goal) -> Judged {
        let mine = self.number(goal.case, goal.of, goal.metric);
        let reached = if goal.against.is_empty() {
            mine
        } else {
            let best = self.best(goal).filter(|&(_, best)| best > 0.0);
            mine.zip(best).map(|(mine, (_, best))| mine / best)
        };
        let passed = reached.is_some_and(|reached| match goal.reach {
            Reach::AtLeast(least) => reached >= least,
            Reach::AtMost(most) => reached <= most,
            Reach::Below(limit) => reached < limit,
        });
        Judged { reached, passed }
    }
}
