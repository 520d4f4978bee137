//! Advice chart: slowdown, life of the device and money by RAM, one below the other, as an SVG.
//!
//! Guarantees: all three have the same axis of RAM; light and dark.
//! Never: measures text.

use core::ops::Range;

use deepheap::simulation::Outcome;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::curve::{Drawn, FAINT, INK, LETTERS, MIB, svg};
use crate::money::{Money, Prices, cheapest};
use crate::simulate::{LIFE_YEARS_MOST, bytes};

const SIZE: (u32, u32) = (760, 780);
const TITLE: u32 = 36;
const SLOWER: RGBColor = RGBColor(42, 157, 92);
const LIFE: RGBColor = RGBColor(38, 118, 190);
const BOTH: RGBColor = RGBColor(190, 94, 38);
const OF_RAM: RGBColor = RGBColor(154, 108, 209);
/// The logarithmic axes go at least so far.
const SLOWER_PERCENT: (f64, f64) = (0.1, 100.0);
const LIFE_YEARS_LEAST: f64 = 0.1;

/// What is drawn.
pub struct AdviceChart<'a> {
    /// What stands before the title.
    pub name: String,
    /// From the least RAM to the most.
    pub points: &'a [(Outcome, Money)],
    pub prices: &'a Prices,
    /// RAM with which the program is at most 5 % slower.
    pub enough: u64,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// A line, its colour, and its word in the legend.
type Line = (Vec<(f64, f64)>, RGBColor, &'static str);

impl AdviceChart<'_> {
    /// The SVG, or what plotters says.
    pub fn svg(&self) -> Result<String, String> {
        svg(|text| self.draw(text))
    }

    fn draw(&self, text: &mut String) -> Drawn {
        let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(said)?;
        let (title, panels) = root.split_vertically(TITLE);
        let letters = ("sans-serif", LETTERS + 2).into_font().color(&INK);
        let words = format!("{}what RAM buys, and what it costs", self.name);
        title.draw(&Text::new(words, (16, 14), letters)).map_err(said)?;
        let [slower, life, money] = <[_; 3]>::try_from(panels.split_evenly((3, 1)))
            .map_err(|_| "three panels were asked for")?;

        let (least, most) = SLOWER_PERCENT;
        let percent = |outcome: &Outcome| ((outcome.slowdown - 1.0) * 100.0).max(least);
        let line = self.line(|outcome, _| percent(outcome));
        let top = 10_f64.powf(highest(&line).max(most).log10().ceil());
        let below = format!("at most 5 % slower: {}", bytes(self.enough));
        let mark = Some((self.enough as f64 / MIB, below));
        let lines = [(line, SLOWER, "")];
        self.panel(&slower, "slower, %", (least..top).log_scale(), &lines, mark)?;

        let years = |outcome: &Outcome| {
            let years = outcome.life_years(self.prices.endurance_bytes());
            years.unwrap_or(LIFE_YEARS_MOST).clamp(LIFE_YEARS_LEAST, LIFE_YEARS_MOST)
        };
        let line = self.line(|outcome, _| years(outcome));
        let range = (LIFE_YEARS_LEAST..LIFE_YEARS_MOST).log_scale();
        self.panel(&life, "device life, years, up to 1000", range, &[(line, LIFE, "")], None)?;

        let both = self.line(|_, money| money.sum());
        let top = highest(&both) * 1.15;
        let mark = cheapest(self.points).map(|at| {
            let ram = self.points[at].0.ram;
            (ram as f64 / MIB, format!("cheapest: {}", bytes(ram)))
        });
        let ram = self.line(|_, money| money.ram);
        let lines = [(ram, OF_RAM, "RAM alone"), (both, BOTH, "RAM and drive")];
        let title = format!("$ for {} years", self.prices.years);
        self.panel(&money, &title, 0.0..top, &lines, mark)?;
        root.present().map_err(said)?;
        Ok(())
    }

    fn line(&self, of: impl Fn(&Outcome, &Money) -> f64) -> Vec<(f64, f64)> {
        let at =
            |(outcome, money): &(Outcome, Money)| (outcome.ram as f64 / MIB, of(outcome, money));
        self.points.iter().map(at).collect()
    }

    fn across(&self) -> Range<f64> {
        let ends = [self.points.first(), self.points.last()];
        let [least, most] = ends.map(|end| end.map_or(0.0, |(point, _)| point.ram as f64 / MIB));
        least..most.max(least + 1.0) + (most - least) / 50.0
    }

    /// One panel, in which a size of RAM is marked.
    fn panel<Y: Ranged<ValueType = f64> + ValueFormatter<f64>>(
        &self,
        area: &Area<'_>,
        title: &str,
        range: impl AsRangedCoord<Value = f64, CoordDescType = Y>,
        lines: &[Line],
        mark: Option<(f64, String)>,
    ) -> Drawn {
        let letters = ("sans-serif", LETTERS).into_font().color(&INK);
        let is_last = lines.len() > 1;
        let across = self.across();
        let middle = (across.start + across.end) / 2.0;
        let mut chart = ChartBuilder::on(area)
            .margin(16)
            .margin_top(4)
            .x_label_area_size(40)
            .y_label_area_size(64)
            .build_cartesian_2d(across.clone(), range)
            .map_err(said)?;
        chart
            .configure_mesh()
            .axis_style(INK)
            .bold_line_style(FAINT)
            .light_line_style(TRANSPARENT)
            .label_style(letters.clone())
            .x_label_formatter(&|x| format!("{x:.0}"))
            .y_label_formatter(&|y| format!("{}", (y * 100.0).round() / 100.0))
            .x_desc(if is_last { "RAM, MiB" } else { "" })
            .y_desc(title)
            .draw()
            .map_err(said)?;
        for (line, colour, _) in lines {
            let drawn = LineSeries::new(line.iter().copied(), colour.stroke_width(2));
            chart.draw_series(drawn).map_err(said)?;
        }
        for (row, (_, colour, word)) in lines.iter().rev().enumerate() {
            if !word.is_empty() {
                let (x, y) = (560, 40 + row as i32 * (LETTERS + 4));
                let line = PathElement::new([(x, y + 8), (x + 24, y + 8)], colour.stroke_width(2));
                area.draw(&line).map_err(said)?;
                area.draw(&Text::new(*word, (x + 30, y), letters.clone())).map_err(said)?;
            }
        }
        let Some((x, words)) = mark else { return Ok(()) };
        let (side, right) = if x > middle { (HPos::Right, -8) } else { (HPos::Left, 8) };
        let letters = letters.pos(Pos::new(side, VPos::Top));
        let heights = chart.y_range();
        let line = PathElement::new([(x, heights.start), (x, heights.end)], INK);
        chart.draw_series([line]).map_err(said)?;
        let words = EmptyElement::at((x, heights.end)) + Text::new(words, (right, 4), letters);
        chart.draw_series([words]).map_err(said)?;
        Ok(())
    }
}

fn highest(line: &[(f64, f64)]) -> f64 {
    line.iter().map(|(_, y)| *y).fold(0.0, f64::max)
}

fn said(error: impl core::fmt::Display) -> String {
    error.to_string()
}
