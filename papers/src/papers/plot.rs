//! Plot: the cases and contenders of an experiment as an SVG, in light and in dark.
//!
//! Guarantees: one colour for a contender in all plots; whoever looks at it in dark colours gets a
//! dark background and light ink; a point without a number leaves a gap.
//! Never: measures text: labels are placed by their number of characters.

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::experiments::{Contender, Drawn};
use super::figure;
use deepheap_bench::failure::Failure;

const WIDTH_LEAST: u32 = 760;
/// Room for the label of a case.
const CASE_WIDTH: u32 = 104;
/// Room beside the cases.
const BESIDE: u32 = 100;
const HEIGHT: u32 = 444;
/// Letters and axes.
pub const INK: RGBColor = RGBColor(36, 41, 47);
/// Lines behind what is drawn.
pub const FAINT: RGBColor = RGBColor(208, 215, 222);
/// The same in the dark; plotters writes colours as attributes, which style rules go over.
const DARK: &str = "<style>@media (prefers-color-scheme: dark) {
[fill=\"#FFFFFF\"] { fill: #0D1117 }
[fill=\"#24292F\"] { fill: #E6EDF3 }
[stroke=\"#24292F\"] { stroke: #8B949E }
[stroke=\"#D0D7DE\"] { stroke: #30363D }
}</style>";
/// Height of the letters; plotters writes about four fifths of it as the size of the font.
const LETTERS: i32 = 15;
/// The same of the line at the bottom.
const SMALL_LETTERS: i32 = 13;
/// Space between groups of bars, of the width of a group.
const GAP: f64 = 0.2;
/// Labels of cases get a second line beyond so many characters.
const LABEL_MAX: usize = 14;

/// What is drawn.
#[derive(Clone, Debug)]
pub struct Plot {
    /// What the vertical axis says.
    pub title: String,
    /// Unit of the numbers.
    pub unit: &'static str,
    /// What the horizontal axis says.
    pub axis: &'static str,
    /// The cases.
    pub labels: Vec<&'static str>,
    /// The contenders, with a number or none for each case.
    pub series: Vec<(Contender, Vec<Option<f64>>)>,
    /// The lowest and highest run of each, where there were several.
    pub spreads: Vec<Vec<Option<(f64, f64)>>>,
    /// On which terms: machine, data and RAM.
    pub terms: String,
    /// How.
    pub drawn: Drawn,
}

fn colour(contender: Contender) -> RGBColor {
    match contender {
        Contender::Objects => RGBColor(31, 119, 208),
        Contender::MicroPages => RGBColor(20, 60, 120),
        Contender::Calls => RGBColor(64, 176, 200),
        Contender::Pages => RGBColor(42, 157, 92),
        Contender::Swap => RGBColor(217, 112, 43),
        Contender::Mmap => RGBColor(154, 108, 209),
        Contender::Bare => RGBColor(127, 127, 127),
    }
}

impl Plot {
    fn width(&self) -> u32 {
        WIDTH_LEAST.max(BESIDE + CASE_WIDTH * self.labels.len() as u32)
    }

    /// The SVG; none if there is nothing to draw.
    pub fn svg(&self) -> Result<Option<String>, Failure> {
        let values: Vec<f64> = self
            .series
            .iter()
            .flat_map(|(_, values)| values.iter().flatten().copied())
            .chain(self.spreads.iter().flatten().flatten().flat_map(|(low, high)| [*low, *high]))
            .filter(|value| value.is_finite() && *value > 0.0)
            .collect();
        let Some(most) = values.iter().copied().reduce(f64::max) else { return Ok(None) };
        let least = values.iter().copied().fold(most, f64::min);
        let mut text = String::new();
        let drawn = {
            let root =
                SVGBackend::with_string(&mut text, (self.width(), HEIGHT)).into_drawing_area();
            if self.drawn == Drawn::LogBars {
                let power = |value: f64, up: bool| {
                    let power = value.log10();
                    10_f64.powf(if up { power.ceil() } else { power.floor() })
                };
                let bottom = power(least * 0.9, false);
                let top = power(most, true).max(bottom * 10.0);
                self.draw(&root, bottom, (bottom..top).log_scale())
            } else {
                self.draw(&root, 0.0, 0.0..most * 1.08)
            }
        };
        drawn.map_err(|error| Failure::Failed(format!("plot: {error}")))?;
        darken(&mut text);
        Ok(Some(text))
    }

    fn draw<'a, Y, R>(
        &self,
        root: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
        bottom: f64,
        heights: R,
    ) -> Result<(), Box<dyn core::error::Error + 'a>>
    where
        R: AsRangedCoord<Value = f64, CoordDescType = Y>,
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let letters = ("sans-serif", LETTERS).into_font().color(&INK);
        root.fill(&WHITE)?;
        let count = self.labels.len();
        let mut chart = ChartBuilder::on(root)
            .margin_top(66)
            .margin_right(16)
            .margin_bottom(92)
            .y_label_area_size(78)
            .build_cartesian_2d(-0.5..count as f64 - 0.5, heights)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .y_max_light_lines(0)
            .bold_line_style(FAINT)
            .axis_style(INK)
            .y_labels(7)
            .y_label_style(letters.clone())
            .y_label_formatter(&|value| figure::shown(*value, self.unit))
            .draw()?;
        let width = (1.0 - GAP) / self.series.len() as f64;
        for (index, (contender, values)) in self.series.iter().enumerate() {
            let colour = colour(*contender);
            let stretches = stretches(values, bottom);
            if self.drawn == Drawn::Lines {
                for points in stretches {
                    chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
                    let dots = points.into_iter().map(|at| Circle::new(at, 4, colour.filled()));
                    chart.draw_series(dots)?;
                }
            } else {
                chart.draw_series(stretches.into_iter().flatten().map(|(case, value)| {
                    let left = case - 0.5 + GAP / 2.0 + width * index as f64;
                    Rectangle::new([(left, bottom), (left + width * 0.92, value)], colour.filled())
                }))?;
            }
        }
        for (index, spreads) in self.spreads.iter().enumerate() {
            // On a bar it is ink; lines cross, so each has its own colour.
            let (beside, ink) = match (self.drawn, self.series.get(index)) {
                (Drawn::Lines, Some((contender, _))) => (0.0, colour(*contender)),
                _ => (GAP / 2.0 - 0.5 + width * (index as f64 + 0.46), INK),
            };
            for (case, spread) in spreads.iter().enumerate() {
                let Some((low, high)) = spread.filter(|(low, _)| *low >= bottom) else { continue };
                let x = case as f64 + beside;
                chart.draw_series(LineSeries::new([(x, low), (x, high)], ink.stroke_width(2)))?;
            }
        }
        self.letter(root, &letters, |case| chart.backend_coord(&(case as f64, bottom)))?;
        root.present()?;
        Ok(())
    }

    /// Title, legend and the labels of the cases.
    fn letter<'a>(
        &self,
        root: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
        letters: &TextStyle<'_>,
        place: impl Fn(usize) -> (i32, i32),
    ) -> Result<(), Box<dyn core::error::Error + 'a>> {
        let middle = letters.pos(Pos::new(HPos::Center, VPos::Top));
        let scale = if self.drawn == Drawn::LogBars { ", logarithmic scale" } else { "" };
        let title = format!("{}{scale}", self.title);
        root.draw(&Text::new(title, (16, 10), letters.clone()))?;
        let mut left = 16;
        for (contender, _) in &self.series {
            let swatch = [(left, 33), (left + 12, 43)];
            root.draw(&Rectangle::new(swatch, colour(*contender).filled()))?;
            root.draw(&Text::new(contender.name(), (left + 18, 31), letters.clone()))?;
            left += 34 + contender.name().len() as i32 * 8;
        }
        for (case, label) in self.labels.iter().enumerate() {
            let (x, y) = place(case);
            for (line, words) in lines(label).into_iter().enumerate() {
                let at = (x, y + 8 + line as i32 * (LETTERS + 3));
                root.draw(&Text::new(words, at, middle.clone()))?;
            }
        }
        let at = (self.width() as i32 / 2 + 31, HEIGHT as i32 - 46);
        root.draw(&Text::new(self.axis, at, middle))?;
        let has_spread = self.spreads.iter().flatten().any(Option::is_some);
        let spread = if has_spread { "; strokes: lowest to highest run" } else { "" };
        let small = ("sans-serif", SMALL_LETTERS).into_font().color(&INK);
        let terms = format!("{}{spread}", self.terms);
        root.draw(&Text::new(terms, (16, HEIGHT as i32 - 20), small))?;
        Ok(())
    }
}

/// Gives an SVG its dark side.
pub fn darken(svg: &mut String) {
    // After the opening tag.
    let end = svg.find('>').map_or(0, |at| at + 1);
    svg.insert_str(end, DARK);
    if !svg.ends_with('\n') {
        svg.push('\n');
    }
}

/// Cases with numbers that can be drawn, neighbours together: nothing leads over a gap.
fn stretches(values: &[Option<f64>], bottom: f64) -> Vec<Vec<(f64, f64)>> {
    let places: Vec<_> = (0..).map(f64::from).zip(values.iter().copied()).collect();
    let can_be_drawn = |value: &Option<f64>| value.is_some_and(|value| value >= bottom);
    places
        .chunk_by(|(_, a), (_, b)| can_be_drawn(a) == can_be_drawn(b))
        .filter(|stretch| stretch.iter().all(|(_, value)| can_be_drawn(value)))
        .map(|stretch| stretch.iter().filter_map(|&(case, value)| Some((case, value?))).collect())
        .collect()
}

/// A label in at most two lines.
fn lines(label: &str) -> Vec<String> {
    if label.len() <= LABEL_MAX {
        return vec![label.into()];
    }
    let spaces = label.match_indices(' ').map(|(at, _)| at);
    let middle = spaces.min_by_key(|at| at.abs_diff(label.len() / 2));
    middle.map_or_else(
        || vec![label.into()],
        |at| vec![label[..at].to_string(), label[at + 1..].to_string()],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(drawn: Drawn, values: Vec<Option<f64>>) -> Option<String> {
        a_plot(drawn, values).svg().unwrap()
    }

    fn a_plot(drawn: Drawn, values: Vec<Option<f64>>) -> Plot {
        let series = vec![(Contender::Objects, values.clone()), (Contender::Swap, values)];
        let labels = vec!["128 B", "packets, 100 to 1500 B", "4 KiB"];
        let spreads = vec![vec![Some((9.0, 30_000.0)), None, None], vec![]];
        let (title, unit, axis) = ("op/s".into(), "/s", "size");
        let terms = "2 CPUs, 32 MiB of RAM".into();
        Plot { title, unit, axis, labels, series, spreads, terms, drawn }
    }

    #[test]
    fn plots_have_labels_colours_and_a_dark_side() {
        for drawn in [Drawn::Lines, Drawn::Bars, Drawn::LogBars] {
            let svg = plot(drawn, vec![Some(10.0), None, Some(20_000.0)]).unwrap();
            assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
            for expected in ["128 B", "packets, 100", "size", "objects", "swap", "#1F77D0"] {
                assert!(svg.contains(expected), "{drawn:?}: {expected}\n{svg}");
            }
            for expected in ["2 CPUs, 32 MiB of RAM", "strokes: lowest to highest run"] {
                assert!(svg.contains(expected), "{drawn:?}: {expected}\n{svg}");
            }
            assert_eq!(svg.contains("logarithmic scale"), drawn == Drawn::LogBars);
            // Every colour that the dark side replaces is there.
            assert!(svg.contains("prefers-color-scheme: dark"));
            assert!(!svg.contains("stroke=\"#FFFFFF\""), "{drawn:?}: white lines stay white");
            for colour in ["fill=\"#FFFFFF\"", "fill=\"#24292F\"", "stroke=\"#24292F\""] {
                assert!(svg.matches(colour).count() > 1, "{drawn:?}: {colour}");
            }
        }
    }

    #[test]
    fn a_point_without_a_number_leaves_a_gap() {
        let lines = |values: Vec<Option<f64>>| {
            // The stroke of a spread is a line of two points as well.
            let plot = Plot { spreads: vec![], ..a_plot(Drawn::Lines, values) };
            let svg = plot.svg().unwrap().unwrap();
            let ours = svg.split('<').filter(|element| element.starts_with("polyline "));
            // A line of one point is none.
            ours.filter(|l| l.contains("#1F77D0") && l.matches(',').count() > 1).count()
        };
        assert_eq!(lines(vec![Some(10.0), Some(15.0), Some(20.0)]), 1);
        assert_eq!(lines(vec![Some(10.0), None, Some(20.0)]), 0);
        let values = [Some(1.0), Some(2.0), None, Some(f64::NAN), Some(3.0)];
        assert_eq!(stretches(&values, 0.0), [vec![(0.0, 1.0), (1.0, 2.0)], vec![(4.0, 3.0)]]);
    }

    #[test]
    fn nothing_is_not_drawn() {
        let nothing = Plot { spreads: vec![], ..a_plot(Drawn::Bars, vec![None, None, None]) };
        assert_eq!(nothing.svg().unwrap(), None);
        assert_eq!(lines("a single"), ["a single"]);
        assert_eq!(lines("memcached, 4 B to 4 KiB"), ["memcached,", "4 B to 4 KiB"]);
    }
}
