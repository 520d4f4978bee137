//! Curve: the miss ratio by RAM as an SVG, in light and in dark.
//!
//! Never: measures text.

use deepheap::simulation::Outcome;
use plotters::prelude::*;

const SIZE: (u32, u32) = (760, 420);
/// Letters and axes.
pub const INK: RGBColor = RGBColor(36, 41, 47);
/// Lines that help.
pub const FAINT: RGBColor = RGBColor(208, 215, 222);
const MISSES: RGBColor = RGBColor(42, 157, 92);
/// The same in the dark; plotters writes colours as attributes, which style rules go over.
const DARK: &str = "<style>@media (prefers-color-scheme: dark) {
[fill=\"#FFFFFF\"] { fill: #0D1117 }
[fill=\"#24292F\"] { fill: #E6EDF3 }
[stroke=\"#24292F\"] { stroke: #8B949E }
[stroke=\"#D0D7DE\"] { stroke: #30363D }
}</style>";
/// The height of letters.
pub const LETTERS: i32 = 15;
/// Bytes of a MiB.
pub const MIB: f64 = (1 << 20) as f64;

/// What drawing answers.
pub type Drawn = Result<(), Box<dyn core::error::Error>>;

/// What was drawn as an SVG, with the colours for where it is dark; or what plotters says.
pub fn svg(draw: impl FnOnce(&mut String) -> Drawn) -> Result<String, String> {
    let mut text = String::new();
    draw(&mut text).map_err(|error| error.to_string())?;
    let at = text.find('>').map_or(0, |end| end + 1);
    text.insert_str(at, DARK);
    Ok(text)
}

/// What is drawn.
pub struct Curve<'a> {
    /// From the least RAM to the most.
    pub points: &'a [Outcome],
    /// The RAM that the traced program had.
    pub traced_ram: u64,
}

impl Curve<'_> {
    /// The SVG, or what plotters says.
    pub fn svg(&self) -> Result<String, String> {
        svg(|text| self.draw(text))
    }

    fn draw(&self, text: &mut String) -> Drawn {
        let shown: Vec<(f64, f64)> = self
            .points
            .iter()
            .map(|point| (point.ram as f64 / MIB, 100.0 * point.counts.miss_ratio()))
            .collect();
        let most = shown.iter().map(|(_, misses)| *misses).fold(1.0, f64::max);
        let end = shown.last().map_or(1.0, |(ram, _)| *ram);
        let failed = |error: &dyn core::fmt::Display| error.to_string();
        let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(|error| failed(&error))?;
        let letters = ("sans-serif", LETTERS).into_font().color(&INK);
        let mut chart = ChartBuilder::on(&root)
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..end * 1.02, 0.0..most * 1.08)
            .map_err(|error| failed(&error))?;
        chart
            .configure_mesh()
            .axis_style(INK)
            .bold_line_style(FAINT)
            .light_line_style(TRANSPARENT)
            .label_style(letters)
            .x_desc(format!("RAM, MiB; traced with {:.0}", self.traced_ram as f64 / MIB))
            .y_desc("reads for 100 touches")
            .draw()
            .map_err(|error| failed(&error))?;
        chart
            .draw_series(LineSeries::new(shown, MISSES.stroke_width(2)))
            .map_err(|error| failed(&error))?;
        root.present().map_err(|error| failed(&error))?;
        Ok(())
    }
}
