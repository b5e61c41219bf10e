//! `curves.svg`: losses, and under them the learning rate and the gradient's norm, over the steps.

use core::fmt::Write as _;
use serde_json::Value;

/// A curve: its name, its colour and its points.
struct Curve {
    name: &'static str,
    colour: &'static str,
    points: Vec<[f64; 2]>,
}

/// A panel of curves, from `top` down.
struct Panel {
    top: f64,
    height: f64,
    /// The least and the greatest value.
    range: [f64; 2],
    curves: Vec<Curve>,
}

/// The picture of a log.
pub(super) fn svg(history: &[Value]) -> String {
    let curve = |name, colour| {
        let point = |line: &Value| Some([line["step"].as_f64()?, line[name].as_f64()?]);
        let points = history.iter().filter_map(point).collect();
        Curve {
            name,
            colour,
            points: thinned(points),
        }
    };
    let steps = history.iter().filter_map(|line| line["step"].as_f64());
    let n_steps = steps.fold(1.0_f64, f64::max);
    let panels = [
        (
            16.0,
            240.0,
            vec![curve("loss", "#1f77b4"), curve("eval_loss", "#d62728")],
        ),
        (296.0, 90.0, vec![curve("learning_rate", "#2ca02c")]),
        (426.0, 90.0, vec![curve("grad_norm", "#9467bd")]),
    ];
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1000 550\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"1000\" height=\"550\" fill=\"white\"/>\n",
    );
    for (top, height, curves) in panels {
        Panel::new(top, height, curves).draw(&mut svg, n_steps);
    }
    let mut text = |x: f64, anchor, what: String| {
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"540\" text-anchor=\"{anchor}\">{what}</text>"
        );
    };
    text(LEFT, "middle", "0".to_owned());
    text((LEFT + RIGHT) / 2.0, "middle", "step".to_owned());
    text(RIGHT, "middle", n_steps.to_string());
    svg.push_str("</svg>\n");
    svg
}

impl Panel {
    fn new(top: f64, height: f64, curves: Vec<Curve>) -> Self {
        let values = || curves.iter().flat_map(|curve| &curve.points);
        let least = values().fold(f64::INFINITY, |least, [_, y]| least.min(*y));
        let most = values().fold(f64::NEG_INFINITY, |most, [_, y]| most.max(*y));
        let range = match (least < most, least.is_finite()) {
            (true, _) => [least, most],
            // One value is in the middle of its panel.
            (false, true) => [
                least - 0.5 * least.abs() - 1e-9,
                least + 0.5 * least.abs() + 1e-9,
            ],
            (false, false) => [0.0, 1.0],
        };
        Self {
            top,
            height,
            range,
            curves,
        }
    }

    fn y(&self, value: f64) -> f64 {
        let [least, most] = self.range;
        self.top + self.height * (1.0 - (value - least) / (most - least))
    }

    fn draw(&self, svg: &mut String, n_steps: f64) {
        let Self { top, height, .. } = self;
        let _ = writeln!(
            svg,
            "<rect x=\"{LEFT}\" y=\"{top}\" width=\"{}\" height=\"{height}\" fill=\"none\" stroke=\"#888\"/>",
            RIGHT - LEFT
        );
        for value in self.range {
            let y = self.y(value) + 4.0;
            let label = Label(value);
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{y:.1}\" text-anchor=\"end\">{label}</text>",
                LEFT - 6.0
            );
        }
        for (i, curve) in (0_u8..).zip(&self.curves) {
            let (colour, y) = (curve.colour, top + 14.0 + 14.0 * f64::from(i));
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{y}\" text-anchor=\"end\" fill=\"{colour}\">{}</text>",
                RIGHT - 6.0,
                curve.name
            );
            let at = |[step, value]: &[f64; 2]| {
                let x = LEFT + (RIGHT - LEFT) * step / n_steps;
                format!("{x:.1},{:.1}", self.y(*value))
            };
            let points: Vec<_> = curve.points.iter().map(at).collect();
            match &points[..] {
                [] => {}
                [point] => {
                    let (x, y) = point.split_once(',').unwrap_or_default();
                    let _ = writeln!(
                        svg,
                        "<circle cx=\"{x}\" cy=\"{y}\" r=\"2.5\" fill=\"{colour}\"/>"
                    );
                }
                points => {
                    let points = points.join(" ");
                    let _ = writeln!(
                        svg,
                        "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\"/>"
                    );
                }
            }
        }
    }
}

/// A value at an axis.
struct Label(f64);

impl core::fmt::Display for Label {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 == 0.0 || (0.01..1e5).contains(&self.0.abs()) {
            true => write!(f, "{:.3}", self.0),
            false => write!(f, "{:.2e}", self.0),
        }
    }
}

/// Points of which no more than [`POINTS_MAX`] are left: the means of neighbours.
fn thinned(points: Vec<[f64; 2]>) -> Vec<[f64; 2]> {
    let size = points.len().div_ceil(POINTS_MAX).max(1);
    let mean = |points: &[[f64; 2]]| {
        #[expect(clippy::cast_precision_loss, reason = "a place on paper")]
        let n = points.len() as f64;
        [0, 1].map(|axis| points.iter().map(|point| point[axis]).sum::<f64>() / n)
    };
    points.chunks(size).map(mean).collect()
}

const LEFT: f64 = 80.0;
const RIGHT: f64 = 980.0;
/// About one per unit of the picture's width.
const POINTS_MAX: usize = 900;

#[cfg(test)]
mod tests {
    use super::{POINTS_MAX, svg};
    use serde_json::{Value, json};

    #[test]
    fn curves_go_through_their_points() {
        let history = [
            json!({"step": 10, "loss": 4.0, "learning_rate": 2e-4}),
            json!({"step": 10, "eval_loss": 2.0}),
            json!({"step": 20, "loss": 1.0, "learning_rate": 0.0}),
            json!({"step": 40, "loss": 2.5, "learning_rate": 1e-4}),
        ];
        let svg = svg(&history);
        assert!(
            svg.contains("<polyline points=\"305.0,16.0 530.0,256.0 980.0,136.0\""),
            "{svg}"
        );
        assert!(svg.contains("<circle cx=\"305.0\" cy=\"176.0\""), "{svg}");
        assert!(
            svg.contains(">eval_loss<") && svg.contains(">2.00e-4<"),
            "{svg}"
        );
    }

    #[test]
    fn any_log_has_a_picture() {
        let equal = [
            json!({"step": 1, "loss": 0.0}),
            json!({"step": 1, "loss": 0.0}),
        ];
        let broken = [json!({"step": 1, "loss": null}), json!("text")];
        for history in [&[][..], &equal, &broken] {
            let svg = svg(history);
            assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN"), "{svg}");
        }
        let long: Vec<Value> = (0..10_000)
            .map(|step| json!({"step": step, "loss": 1}))
            .collect();
        let svg = svg(&long);
        let line = svg
            .lines()
            .find(|line| line.starts_with("<polyline"))
            .unwrap();
        assert!(line.matches(',').count() <= POINTS_MAX, "{line}");
    }
}
