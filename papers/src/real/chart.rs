//! Chart: the speed of each program relative to swap, a row for each, a panel for each size.
//!
//! Guarantees: a bound is drawn as a ring, a number as a disc; what has neither is not drawn.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::standing::Speed;
use crate::papers::plot::{FAINT, INK, darken};
use deepheap_bench::failure::Failure;

const DEEPHEAP: RGBColor = RGBColor(42, 157, 92);
const ZRAM: RGBColor = RGBColor(154, 108, 209);
/// Room for the names of the programs.
const NAMES_WIDTH: i32 = 150;
const PANEL_WIDTH: i32 = 250;
const PANEL_GAP: i32 = 24;
const ROW: i32 = 24;
const ABOVE: i32 = 92;
const BELOW: i32 = 64;
/// What the axis is marked with.
const MARKS: [f64; 7] = [0.05, 0.1, 0.25, 1.0, 4.0, 10.0, 20.0];
const LETTERS: i32 = 15;
const SMALL_LETTERS: i32 = 13;

/// The speeds of one program.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// For each size, deepheap and zram beside swap.
    pub speeds: Vec<(Speed, Speed)>,
}

/// What is drawn.
#[derive(Clone, Debug)]
pub struct Chart {
    /// The panels.
    pub sizes: Vec<String>,
    /// The programs.
    pub rows: Vec<Row>,
    /// On which machine.
    pub terms: String,
}

/// Where a speed is drawn, and whether as a number.
fn place(speed: Speed) -> Option<(f64, bool)> {
    match speed {
        Speed::Exactly(times) => Some((times, true)),
        Speed::MoreThan(times) | Speed::LessThan(times) => Some((times, false)),
        Speed::Unknown => None,
    }
}

impl Chart {
    /// The SVG; none if there is nothing to draw.
    pub fn svg(&self) -> Result<Option<String>, Failure> {
        let speeds = || self.rows.iter().flat_map(|row| row.speeds.iter().copied());
        if !speeds().any(|(ours, zram)| place(ours).is_some() || place(zram).is_some()) {
            return Ok(None);
        }
        let panels = self.sizes.len() as i32;
        let width = NAMES_WIDTH + panels * (PANEL_WIDTH + PANEL_GAP);
        let height = ABOVE + self.rows.len() as i32 * ROW + BELOW;
        let mut text = String::new();
        let drawn = {
            let size = (width as u32, height as u32);
            let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
            self.draw(&root)
        };
        drawn.map_err(|error| Failure::Failed(format!("plot: {error}")))?;
        darken(&mut text);
        Ok(Some(text))
    }

    fn draw<'a>(
        &self,
        root: &DrawingArea<SVGBackend<'a>, Shift>,
    ) -> Result<(), Box<dyn core::error::Error + 'a>> {
        let letters = ("sans-serif", LETTERS).into_font().color(&INK);
        let small = ("sans-serif", SMALL_LETTERS).into_font().color(&INK);
        let middle = small.pos(Pos::new(HPos::Center, VPos::Top));
        let right = letters.pos(Pos::new(HPos::Right, VPos::Center));
        let bottom = ABOVE + self.rows.len() as i32 * ROW;
        root.fill(&WHITE)?;
        let title =
            "Speed relative to swap with the same memory (more is better), logarithmic scale";
        root.draw(&Text::new(title, (16, 10), letters.clone()))?;
        for (index, (name, colour)) in
            [("deepheap", DEEPHEAP), ("zram", ZRAM)].into_iter().enumerate()
        {
            let left = 16 + index as i32 * 110;
            root.draw(&Circle::new((left + 6, 42), 5, colour.filled()))?;
            root.draw(&Text::new(name, (left + 18, 35), letters.clone()))?;
        }
        let rings = "rings: at least or at most so much, for one of the two took too long";
        root.draw(&Text::new(rings, (240, 36), small.clone()))?;
        for (row, program) in self.rows.iter().enumerate() {
            let y = ABOVE + row as i32 * ROW + ROW / 2;
            root.draw(&Text::new(program.name.clone(), (NAMES_WIDTH - 10, y), right.clone()))?;
        }
        for (panel, size) in self.sizes.iter().enumerate() {
            let left = NAMES_WIDTH + panel as i32 * (PANEL_WIDTH + PANEL_GAP);
            let center = (left + PANEL_WIDTH / 2, ABOVE - 30);
            root.draw(&Text::new(format!("{size} of its peak"), center, middle.clone()))?;
            for mark in MARKS {
                let x = left + across(mark);
                let line = [(x, ABOVE), (x, bottom)];
                let style = if mark == 1.0 { INK } else { FAINT };
                root.draw(&PathElement::new(line, style.stroke_width(1)))?;
                root.draw(&Text::new(format!("{mark}"), (x, bottom + 6), middle.clone()))?;
            }
            for (row, program) in self.rows.iter().enumerate() {
                let y = ABOVE + row as i32 * ROW + ROW / 2;
                root.draw(&PathElement::new([(left, y), (left + PANEL_WIDTH, y)], FAINT))?;
                let Some(&(ours, zram)) = program.speeds.get(panel) else { continue };
                for (speed, colour) in [(zram, ZRAM), (ours, DEEPHEAP)] {
                    let Some((times, is_exact)) = place(speed) else { continue };
                    let at = (left + across(times), y);
                    let style = if is_exact { colour.filled() } else { colour.stroke_width(2) };
                    root.draw(&Circle::new(at, 5, style))?;
                }
            }
        }
        root.draw(&Text::new(self.terms.clone(), (16, bottom + BELOW - 24), small))?;
        root.present()?;
        Ok(())
    }
}

/// How far right a speed is drawn in its panel; what is off the axis stands at its end.
fn across(times: f64) -> i32 {
    let (low, high) = (MARKS[0].ln(), MARKS[MARKS.len() - 1].ln());
    let part = (times.ln().clamp(low, high) - low) / (high - low);
    (part * f64::from(PANEL_WIDTH)).round() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_discs_and_rings_are_drawn_and_nothing_is_not() {
        let chart = |speeds| Chart {
            sizes: vec!["1/2".into()],
            rows: vec![Row { name: "sort".into(), speeds: vec![speeds] }],
            terms: "2 CPUs".into(),
        };
        let svg = chart((Speed::Exactly(2.0), Speed::MoreThan(3.0))).svg().unwrap().unwrap();
        for expected in ["sort", "1/2 of its peak", "2 CPUs", "prefers-color-scheme: dark"] {
            assert!(svg.contains(expected), "{expected}");
        }
        // The legend's two, and one of each.
        assert_eq!(svg.matches("<circle").count(), 4);
        assert_eq!(chart((Speed::Unknown, Speed::Unknown)).svg().unwrap(), None);
        assert!(across(1e-9) == 0 && across(1e9) == PANEL_WIDTH && across(1.0) == PANEL_WIDTH / 2);
    }
}
