//! Live bytes over time with the plan's checkpoints, as SVG or as a page with the table below.

use crate::planfile::{Part, PartPlan, Plan};
use crate::profile::Profile;
use crate::simulate::Outcome;
use crate::units::{Bytes, Nanos};
use std::fmt::Write;

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 124.0;
const PLOT: f64 = WIDTH - LEFT - 32.0;
const TOP: f64 = 84.0;
const HEIGHT: f64 = 300.0;
const LANE: f64 = 34.0;
const BAR: f64 = 30.0;
/// So many columns are drawn, with the least and most that was live in each.
const COLUMNS: usize = 900;
/// More checkpoints of a part than this are not drawn one by one.
const MARKS: usize = 400;
/// So many rows the page's table has.
const ROWS: usize = 1000;

const STYLE: &str = "text{font:13px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;fill:#334155}\
.t{font-size:18px;font-weight:600;fill:#0f172a}.s{fill:#64748b}.e{text-anchor:end}.m{text-anchor:middle}\
.g{stroke:#e2e8f0;stroke-width:1}.a{stroke:#94a3b8;stroke-width:1}\
.l{fill:#bfdbfe}.b{fill:#60a5fa}.c{stroke:#dc2626;stroke-width:1.2;stroke-opacity:.75}.d{fill:#dc2626;stroke:#fff;stroke-width:1.2}\
.i0{fill:#fecaca}.i1{fill:#fca5a5}.w{font-size:11px;fill:#7f1d1d}.x{stroke:#0f172a;stroke-width:1.5}";

/// One part of a picture beneath another.
struct Picture {
    body: String,
    bottom: f64,
}

impl Picture {
    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let _ = write!(self.body, r#"<text x="{x:.1}" y="{y:.1}" class="{class}">{}</text>"#, escaped(text));
    }

    fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        let _ = write!(
            self.body,
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" class="{class}"/>"#
        );
    }

    fn rectangle(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), class: &str, title: &str) {
        let title = escaped(title);
        let _ = write!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.2}" height="{height:.1}" class="{class}"><title>{title}</title></rect>"#
        );
    }
}

/// The picture.
#[must_use]
pub fn svg(profile: &Profile, plan: &Plan, outcomes: &[Outcome]) -> String {
    let mut picture = Picture { body: String::new(), bottom: TOP + HEIGHT };
    let model = match plan.parts.as_slice() {
        [_] => "Checkpoints of the whole job",
        _ => "Checkpoints of device and processor apart",
    };
    picture.text(LEFT, 32.0, "t", model);
    let told: Vec<String> = plan.parts.iter().map(in_words).collect();
    picture.text(LEFT, 54.0, "s", &told.join(" · "));
    live_bytes(&mut picture, profile, plan);
    for part in &plan.parts {
        lane(&mut picture, part, plan.end_ns);
    }
    if !outcomes.is_empty() {
        bars(&mut picture, plan.end_ns, outcomes);
    }
    let height = picture.bottom + 24.0;
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img"><title>{model}</title><style>{STYLE}</style><rect width="100%" height="100%" fill="#fff"/>{}</svg>
"##,
        picture.body
    )
}

/// A page with the picture and its checkpoints.
#[must_use]
pub fn html(profile: &Profile, plan: &Plan, outcomes: &[Outcome]) -> String {
    let mut rows = String::new();
    for (part, each) in
        plan.parts.iter().flat_map(|part| part.checkpoints.iter().map(move |each| (part, each))).take(ROWS)
    {
        let kernel = escaped(each.kernel.as_deref().unwrap_or(""));
        let _ = writeln!(
            rows,
            "<tr><td>{}<td>{}<td>{}<td>{kernel}<td>{}<td>{}<td>{}",
            part.part.name(),
            each.at_ns,
            each.boundary,
            Bytes(each.gpu_bytes),
            Bytes(each.cpu_bytes),
            Nanos((each.cost_s * 1e9) as u64)
        );
    }
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Checkpoint plan</title>\
<style>body{{font:14px system-ui,sans-serif;color:#334155;margin:24px auto;max-width:1200px}}svg{{max-width:100%;height:auto}}\
table{{border-collapse:collapse;width:100%}}th,td{{text-align:left;padding:4px 12px 4px 0;border-bottom:1px solid #e2e8f0}}</style>\n{}\
<table><tr><th>part<th>at<th>boundary<th>before kernel<th>device, live<th>processor<th>cost\n{rows}</table></html>\n",
        svg(profile, plan, outcomes)
    )
}

fn in_words(part: &PartPlan) -> String {
    let limit = part.interval_ns.map_or(String::new(), |interval| format!(" of {interval}"));
    let count = part.checkpoints.len();
    format!(
        "{}: {count} × {}, longest gap {}{limit}",
        part.part.name(),
        Bytes(part.bytes / (count as u64).max(1)),
        part.longest_gap_ns
    )
}

fn x_of(at: u64, end: Nanos) -> f64 {
    LEFT + PLOT * at as f64 / end.0.max(1) as f64
}

/// Areas, axes, and a mark at each checkpoint of the job or the device.
fn live_bytes(picture: &mut Picture, profile: &Profile, plan: &Plan) {
    let columns = columns(profile);
    let most = columns.iter().map(|(_, most)| *most).max().unwrap_or(0).max(1);
    let step = nice_bytes(most);
    let top = step * most.div_ceil(step);
    let y_of = |bytes: u64| TOP + HEIGHT * (1.0 - bytes as f64 / top as f64);
    for bytes in (0..=top / step).map(|tick| tick * step) {
        let y = y_of(bytes);
        picture.line((LEFT, y), (LEFT + PLOT, y), "g");
        picture.text(LEFT - 10.0, y + 4.0, "e s", &Bytes(bytes).to_string());
    }
    let step = nice_time(plan.end_ns);
    for at in (0..).map(|tick| tick * step).take_while(|at| *at <= plan.end_ns.0) {
        let x = x_of(at, plan.end_ns);
        picture.line((x, TOP + HEIGHT), (x, TOP + HEIGHT + 5.0), "a");
        let label = if at == 0 { "0".to_owned() } else { Nanos(at).to_string() };
        picture.text(x, TOP + HEIGHT + 20.0, "m s", &label);
    }
    let x_of_column = |column: usize| LEFT + PLOT * column as f64 / COLUMNS as f64;
    let area = |of: fn(&(u64, u64)) -> u64| {
        let mut path = format!("M{LEFT:.1} {:.1}", TOP + HEIGHT);
        for (column, both) in columns.iter().enumerate() {
            let (from, to, y) = (x_of_column(column), x_of_column(column + 1), y_of(of(both)));
            let _ = write!(path, "L{from:.1} {y:.1}L{to:.1} {y:.1}");
        }
        path + &format!("L{:.1} {:.1}Z", LEFT + PLOT, TOP + HEIGHT)
    };
    let (most, least) = (area(|both| both.1), area(|both| both.0));
    let _ = write!(picture.body, r#"<path d="{most}" class="l"/><path d="{least}" class="b"/>"#);
    picture.line((LEFT, TOP + HEIGHT), (LEFT + PLOT, TOP + HEIGHT), "a");
    let marked = plan.parts.iter().filter(|part| part.part != Part::Cpu);
    for each in marked.flat_map(every_so_many) {
        let (x, y) = (x_of(each.at_ns.0, plan.end_ns), y_of(each.gpu_bytes));
        picture.line((x, TOP), (x, TOP + HEIGHT), "c");
        let kernel = escaped(each.kernel.as_deref().unwrap_or(""));
        let _ = write!(
            picture.body,
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="4.5" class="d"><title>{}: before kernel {} ({kernel}), {} live</title></circle>"#,
            each.at_ns,
            each.boundary,
            Bytes(each.gpu_bytes)
        );
    }
    let x = LEFT + PLOT;
    picture.text(
        x,
        74.0,
        "e s",
        "device memory live at kernel boundaries: most (pale) and least (blue) · checkpoints (red)",
    );
    picture.bottom += 40.0;
}

fn every_so_many(part: &PartPlan) -> impl Iterator<Item = &crate::planfile::Checkpoint> {
    part.checkpoints.iter().step_by(part.checkpoints.len().div_ceil(MARKS).max(1))
}

/// The intervals between a part's checkpoints.
fn lane(picture: &mut Picture, part: &PartPlan, end: Nanos) {
    let y = picture.bottom;
    picture.text(LEFT - 10.0, y + 16.0, "e", part.part.name());
    let mut last = 0;
    let marks = every_so_many(part).map(|each| each.at_ns.0).chain([end.0]);
    for (index, at) in marks.enumerate() {
        let (from, to) = (x_of(last, end), x_of(at, end));
        let length = Nanos(at - last);
        picture.rectangle(
            (from, y),
            (to - from, 24.0),
            if index % 2 == 0 { "i0" } else { "i1" },
            &length.to_string(),
        );
        if to - from > 56.0 {
            picture.text((from + to) / 2.0, y + 16.0, "m w", &length.to_string());
        }
        last = at;
    }
    picture.bottom += LANE;
}

/// Simulated run times, the program's own at the left of each bar.
fn bars(picture: &mut Picture, end: Nanos, outcomes: &[Outcome]) {
    picture.bottom += 28.0;
    picture.text(LEFT, picture.bottom, "t", "Simulated run times with failures");
    picture.bottom += 16.0;
    let times = outcomes.iter().filter_map(|each| Some(each.mean_s? + each.error_s.unwrap_or(0.0)));
    // One that is far beyond the others would hide them.
    let shown: Vec<f64> = times.collect();
    let least = shown.iter().copied().fold(f64::INFINITY, f64::min);
    let longest = shown.iter().copied().fold(end.seconds(), f64::max).min(least.max(end.seconds()) * 3.0);
    let room = PLOT - 340.0;
    let scale = |seconds: f64| (room * seconds / longest).min(room);
    for each in outcomes {
        let y = picture.bottom;
        picture.text(LEFT - 10.0, y + 15.0, "e", each.way);
        let told = match each.mean_s {
            _ if each.given_up > 0 => {
                format!("{} runs not done in 100 times the program's time", each.given_up)
            }
            Some(mean) => {
                let cut = if mean > longest { " →" } else { "" };
                let error = each.error_s.unwrap_or(0.0);
                format!("{:.1} s ± {error:.1}{cut}, {} checkpoints", mean, each.checkpoints)
            }
            None => "not one run was done".to_owned(),
        };
        let width = if each.given_up > 0 { room } else { each.mean_s.map_or(room, scale) };
        picture.rectangle((LEFT, y), (width, 20.0), "b", &told);
        picture.text(LEFT + width + 10.0, y + 15.0, "s", &told);
        picture.bottom += BAR;
    }
    let x = LEFT + scale(end.seconds());
    let top = picture.bottom - BAR * outcomes.len() as f64 - 4.0;
    picture.line((x, top), (x, picture.bottom - 4.0), "x");
    picture.text(x, picture.bottom + 12.0, "m s", &format!("the program alone: {end}"));
    picture.bottom += 16.0;
}

/// Least and most live of each column of time; what is live is so until the next boundary.
fn columns(profile: &Profile) -> Vec<(u64, u64)> {
    let mut columns = vec![(u64::MAX, 0); COLUMNS];
    let end = u128::from(profile.end().0.max(1));
    let column_of = |at: u64| ((u128::from(at) * COLUMNS as u128 / end) as usize).min(COLUMNS - 1);
    let mut see = |from: usize, to: usize, live: u64| {
        for (least, most) in &mut columns[from..=to] {
            (*least, *most) = ((*least).min(live), (*most).max(live));
        }
    };
    let (mut last, mut live) = (0, 0);
    profile.device().each(|at, step| {
        let column = column_of(at);
        // Within one column nothing is left to be carried on.
        if column > last + 1 {
            see(last + 1, column - 1, live);
        }
        see(column, column, step.live);
        (last, live) = (column, step.live);
    });
    see(last, COLUMNS - 1, live);
    columns
}

/// A step of an axis with some four ticks.
fn nice_bytes(most: u64) -> u64 {
    let step = (most / 4).max(1);
    // Powers of two are what memory comes in.
    step.checked_next_power_of_two().unwrap_or(1 << 62)
}

fn nice_time(end: Nanos) -> u64 {
    let least = (end.0 / 10).max(1);
    let ten = 10_u64.pow(least.ilog10());
    [1, 2, 5]
        .into_iter()
        .map(|factor| factor * ten)
        .find(|step| *step >= least)
        .unwrap_or(ten.saturating_mul(10))
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            c if c.is_control() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}
