//! Chart: numbers by RAM as an SVG, a panel for each, one below the other.
//!
//! Guarantees: all panels have the same axis of RAM; light and dark.
//! Never: measures text.

use core::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const WIDTH: u32 = 760;
const TITLE: u32 = 36;
const PANEL: u32 = 320;
/// The height of letters.
const LETTERS: i32 = 15;
/// Letters and axes.
const INK: RGBColor = RGBColor(36, 41, 47);
/// Lines that help.
const FAINT: RGBColor = RGBColor(208, 215, 222);
const LINES: [RGBColor; 2] = [RGBColor(42, 157, 92), RGBColor(38, 118, 190)];
/// Bytes of a MiB.
const MIB: f64 = (1 << 20) as f64;
/// The same in the dark; plotters writes colours as attributes, which style rules go over.
const DARK: &str = "<style>@media (prefers-color-scheme: dark) {
[fill=\"#FFFFFF\"] { fill: #0D1117 }
[fill=\"#24292F\"] { fill: #E6EDF3 }
[stroke=\"#24292F\"] { stroke: #8B949E }
[stroke=\"#D0D7DE\"] { stroke: #30363D }
}</style>";

/// One number by RAM.
pub struct Panel {
    /// The name of the number.
    pub name: &'static str,
    /// Bytes of RAM with the number, from the least RAM to the most.
    pub line: Vec<(u64, f64)>,
    /// Where the number's axis begins and ends.
    pub range: Range<f64>,
    /// Whether it is logarithmic.
    pub is_logarithmic: bool,
    /// A size of RAM that is marked, and why.
    pub mark: Option<(u64, &'static str)>,
}

type Drawn = Result<(), Box<dyn core::error::Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The SVG, or what plotters says.
pub fn svg(title: &str, panels: &[Panel]) -> Result<String, String> {
    let mut text = String::new();
    draw(&mut text, title, panels).map_err(|error| error.to_string())?;
    let at = text.find('>').map_or(0, |end| end + 1);
    text.insert_str(at, DARK);
    Ok(text)
}

fn draw(text: &mut String, title: &str, panels: &[Panel]) -> Drawn {
    let height = TITLE + PANEL * panels.len() as u32;
    let root = SVGBackend::with_string(text, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE).map_err(said)?;
    let (head, below) = root.split_vertically(TITLE);
    let letters = ("sans-serif", LETTERS + 2).into_font().color(&INK);
    head.draw(&Text::new(title, (16, 14), letters)).map_err(said)?;
    let areas = below.split_evenly((panels.len(), 1));
    for ((panel, area), colour) in panels.iter().zip(&areas).zip(LINES.into_iter().cycle()) {
        match panel.is_logarithmic {
            true => panel.draw(area, panel.range.clone().log_scale(), colour)?,
            false => panel.draw(area, panel.range.clone(), colour)?,
        }
    }
    root.present().map_err(said)?;
    Ok(())
}

impl Panel {
    fn draw<Y: Ranged<ValueType = f64> + ValueFormatter<f64>>(
        &self,
        area: &Area<'_>,
        range: impl AsRangedCoord<Value = f64, CoordDescType = Y>,
        colour: RGBColor,
    ) -> Drawn {
        let letters = ("sans-serif", LETTERS).into_font().color(&INK);
        let ends = [self.line.first(), self.line.last()];
        let [least, most] = ends.map(|end| end.map_or(0.0, |(ram, _)| *ram as f64 / MIB));
        let across = least..most.max(least + 1.0) + (most - least) / 50.0;
        let mut chart = ChartBuilder::on(area)
            .margin(16)
            .margin_top(4)
            .x_label_area_size(40)
            .y_label_area_size(64)
            .build_cartesian_2d(across, range)
            .map_err(said)?;
        chart
            .configure_mesh()
            .axis_style(INK)
            .bold_line_style(FAINT)
            .light_line_style(TRANSPARENT)
            .label_style(letters.clone())
            .x_label_formatter(&|x| format!("{x:.0}"))
            .y_label_formatter(&|y| format!("{}", (y * 100.0).round() / 100.0))
            .x_desc("RAM, MiB")
            .y_desc(self.name)
            .draw()
            .map_err(said)?;
        let line = self.line.iter().map(|(ram, number)| (*ram as f64 / MIB, *number));
        chart.draw_series(LineSeries::new(line, colour.stroke_width(2))).map_err(said)?;
        let Some((ram, why)) = self.mark else { return Ok(()) };
        let (x, words) = (ram as f64 / MIB, format!("{why}: {}", bytes(ram)));
        let (side, right) =
            if x > (least + most) / 2.0 { (HPos::Right, -8) } else { (HPos::Left, 8) };
        let letters = letters.pos(Pos::new(side, VPos::Top));
        let heights = chart.y_range();
        let line = PathElement::new([(x, heights.start), (x, heights.end)], INK);
        chart.draw_series([line]).map_err(said)?;
        let words = EmptyElement::at((x, heights.end)) + Text::new(words, (right, 4), letters);
        chart.draw_series([words]).map_err(said)?;
        Ok(())
    }
}

fn said(error: impl core::fmt::Display) -> String {
    error.to_string()
}

/// A size in MiB or GiB.
pub fn bytes(bytes: u64) -> String {
    let mib = bytes as f64 / MIB;
    if mib < 10_000.0 { format!("{mib:.0} MiB") } else { format!("{:.1} GiB", mib / 1024.0) }
}
