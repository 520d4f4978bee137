//! Look: whether `top` is drawn with colours, and of what its pictures are made.
//!
//! Guarantees: without colours there is none; what is bold or reversed stays so.
//! Threads: plain data.

use ratatui::style::{Color, Modifier, Style};

use crate::live::top::spark::Glyphs;

/// How it is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Whether there are colours.
    pub has_colour: bool,
    /// What pictures are made of.
    pub glyphs: Glyphs,
}

impl Look {
    /// A colour, where there are colours.
    pub fn colour(self, colour: Color) -> Style {
        if self.has_colour { Style::new().fg(colour) } else { Style::new() }
    }

    /// Titles.
    pub fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// What matters less.
    pub fn dim(self) -> Style {
        if self.has_colour { Style::new().add_modifier(Modifier::DIM) } else { Style::new() }
    }
}
