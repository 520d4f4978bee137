//! Flame graph: stacks as an SVG, one box for each function below what called it. As wide as its
//! part of the time or of the bytes; a click widens a box to the whole picture, and a click on the
//! lowest one goes back.
//!
//! Our own, for inferno would bring the licence CDDL, which deny.toml has not.
//!
//! Guarantees: text of the program is text, never markup. It loads nothing.
//! Threads: pure.

use std::collections::BTreeMap;

use crate::profile::stacks::{Measure, Stacks};

const WIDTH: f64 = 1200.0;
const ROW: usize = 18;
const TOP: usize = 34;
/// The width of a letter, about.
const LETTER: f64 = 6.7;
/// Boxes that would be narrower are left out.
const WIDTH_MIN: f64 = 0.3;
const STYLE: &str = "<style>text{font:11px monospace;pointer-events:none}rect{stroke:#fff;\
stroke-width:.5}g:hover>rect{stroke:#000}#head{font-size:14px}</style>";
/// Where each box is by itself is in its attributes: left, width and row.
const SCRIPT: &str = r#"<script><![CDATA[
const boxes = [...document.querySelectorAll("g")], letter = 6.7, width = 1200;
function show(left, wide) {
  for (const box of boxes) {
    const [l, w] = [+box.dataset.l, +box.dataset.w];
    const x = Math.max(0, (l - left) / wide * width);
    const end = Math.min(width, (l + w - left) / wide * width);
    const [rect, text] = [box.querySelector("rect"), box.querySelector("text")];
    box.style.display = end - x > 0.3 ? "" : "none";
    rect.setAttribute("x", x); rect.setAttribute("width", Math.max(0, end - x));
    text.setAttribute("x", x + 3);
    const room = Math.floor((end - x - 6) / letter), name = box.dataset.n;
    text.textContent = room < 3 ? "" : name.length > room ? name.slice(0, room - 2) + ".." : name;
  }
}
for (const box of boxes) box.onclick = () => show(+box.dataset.l, +box.dataset.w);
]]></script>"#;

#[derive(Default)]
struct Node {
    weight: u64,
    callees: BTreeMap<String, Node>,
}

/// The picture.
pub fn svg(stacks: &Stacks) -> String {
    let mut root = Node::default();
    for sample in &stacks.samples {
        root.weight += sample.weight;
        let mut node = &mut root;
        for name in stacks.names(sample) {
            node = node.callees.entry(name).or_default();
            node.weight += sample.weight;
        }
    }
    let mut picture =
        Picture { measure: stacks.measure, all: root.weight.max(1), boxes: String::new() };
    let rows = picture.draw(&root, "all", (0, 0));
    let Picture { measure, boxes, .. } = picture;
    let (title, sum, height) = (measure.title(), measure.shown(root.weight), TOP + rows * ROW + 6);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\">\n{STYLE}\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text id=\"head\" x=\"6\" y=\"22\">{title}: {sum}</text>\n\
         {boxes}{SCRIPT}\n</svg>\n"
    )
}

struct Picture {
    measure: Measure,
    all: u64,
    boxes: String,
}

impl Picture {
    /// Draws a function and what it calls, in rows from there on down; the number of rows.
    fn draw(&mut self, node: &Node, name: &str, (before, row): (u64, usize)) -> usize {
        let scale = WIDTH / self.all as f64;
        let (left, width) = (before as f64 * scale, node.weight as f64 * scale);
        if width < WIDTH_MIN {
            return row;
        }
        let y = TOP + row * ROW;
        let (shown, name) = (escaped(&cut(name, width)), escaped(name));
        let part = self.measure.shown(node.weight);
        let share = node.weight as f64 * 100.0 / self.all as f64;
        let colour = colour(&name);
        self.boxes += &format!(
            "<g data-l=\"{left:.3}\" data-w=\"{width:.3}\" data-n=\"{name}\">\
             <title>{name}: {part}, {share:.2} %</title>\
             <rect x=\"{left:.3}\" y=\"{y}\" width=\"{width:.3}\" height=\"{ROW}\" \
             fill=\"{colour}\"/><text x=\"{:.3}\" y=\"{}\">{shown}</text></g>\n",
            left + 3.0,
            y + 13,
        );
        let (mut next, mut rows) = (before, row + 1);
        for (name, callee) in &node.callees {
            rows = rows.max(self.draw(callee, name, (next, row + 1)));
            next += callee.weight;
        }
        rows
    }
}

/// As much of a name as fits.
fn cut(name: &str, width: f64) -> String {
    let room = ((width - 6.0) / LETTER).max(0.0) as usize;
    match name.chars().count() {
        _ if room < 3 => String::new(),
        letters if letters > room => name.chars().take(room - 2).collect::<String>() + "..",
        _ => name.to_owned(),
    }
}

/// A warm colour, the same for each box of a function.
fn colour(name: &str) -> String {
    let hash = name.bytes().fold(5381u32, |hash, byte| hash.wrapping_mul(33) ^ u32::from(byte));
    let (green, blue) = (90 + hash % 130, 40 + (hash >> 8) % 50);
    format!("rgb(245,{green},{blue})")
}

fn escaped(text: &str) -> String {
    text.chars()
        .map(|letter| match letter {
            '&' => "&amp;".to_owned(),
            '<' => "&lt;".to_owned(),
            '>' => "&gt;".to_owned(),
            '"' => "&quot;".to_owned(),
            control if control.is_control() => " ".to_owned(),
            letter => letter.to_string(),
        })
        .collect()
}
