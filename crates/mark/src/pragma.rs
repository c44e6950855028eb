//! `#pragma CPT` in preprocessed source, and what becomes of it.

use thiserror::Error;

/// The statement that a mark is: PTX has it as it stands here, and no access to memory is moved over it.
const MARK: &[u8] = br#"asm volatile(".pragma \"cpt\";" ::: "memory");"#;

/// A mark that cannot be one.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("{file}:{line}: #pragma CPT {why}")]
pub struct Misplaced {
    file: String,
    line: usize,
    why: &'static str,
}

/// The source with each `#pragma CPT` made a statement; nothing if it has none.
pub fn marked(text: &[u8]) -> Result<Option<Vec<u8>>, Misplaced> {
    let mut found = false;
    let mut place = Place::default();
    let text = replace(text, |line| {
        let Line::Pragma { before, more } = line else {
            place.pass(line);
            return Ok(None);
        };
        let why = match (more, before) {
            (true, _) => Some("takes no further words"),
            (_, Before::Head) => {
                Some("would be all that a condition or a loop is for: put it and what follows it in braces")
            }
            (_, Before::Other) => None,
        };
        if let Some(why) = why {
            return Err(Misplaced { file: place.file.clone(), line: place.line, why });
        }
        found = true;
        place.pass(line);
        Ok(Some(MARK))
    })?;
    Ok(found.then_some(text))
}

/// Whether source has marks that are statements already.
pub fn has_statements(text: &[u8]) -> bool {
    const INNER: &[u8] = br#"".pragma \"cpt\";""#;
    text.windows(INNER.len()).any(|window| window == INNER)
}

/// The file that was preprocessed.
pub fn source(text: &[u8]) -> String {
    let mut place = Place::default();
    let first = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if let Some(words) = first.strip_prefix(b"#") {
        place.pass(Line::From(words));
    }
    place.file
}

/// The source without any `#pragma CPT`; nothing if it has none.
pub fn without(text: &[u8]) -> Option<Vec<u8>> {
    let mut found = false;
    let replaced = replace(text, |line| {
        let is_mark = matches!(line, Line::Pragma { .. });
        found |= is_mark;
        Ok::<_, std::convert::Infallible>(is_mark.then_some(&b""[..]))
    });
    match replaced {
        Ok(replaced) => found.then_some(replaced),
        Err(never) => match never {},
    }
}

/// PTX without marks, its lines where they were; nothing if it has none.
pub fn unmarked_ptx(text: &[u8]) -> Option<Vec<u8>> {
    let is_mark = |line: &[u8]| line.trim_ascii().starts_with(b".pragma \"cpt\"");
    if !text.split(|byte| *byte == b'\n').any(is_mark) {
        return None;
    }
    let lines = text.split(|byte| *byte == b'\n').map(|line| if is_mark(line) { b"" } else { line });
    Some(lines.collect::<Vec<_>>().join(&b'\n'))
}

/// What a line is.
enum Line<'a> {
    /// `#pragma CPT`, and whether there is more on it.
    Pragma { before: Before, more: bool },
    /// What the preprocessor says of where the next line is from: `# 12 "a.cu" 2`.
    From(&'a [u8]),
    /// Another.
    Other,
}

/// What comes before a pragma.
#[derive(Clone, Copy)]
enum Before {
    /// What takes the next statement as its own: `if (…)`, `else`, `for (…)`, `do`.
    Head,
    /// Something else.
    Other,
}

/// Where the preprocessor says that a line is from.
#[derive(Default)]
struct Place {
    file: String,
    line: usize,
}

impl Place {
    /// Goes to the next line.
    fn pass(&mut self, line: Line<'_>) {
        let Line::From(words) = line else {
            self.line += 1;
            return;
        };
        let words = String::from_utf8_lossy(words);
        let (number, name) = words.trim().split_once(' ').unwrap_or((&words, ""));
        if let Some(name) = name.split('"').nth(1) {
            self.file = name.to_owned();
        }
        self.line = number.parse().unwrap_or(0);
    }
}

/// Replaces lines by what `with` says they are to be, if anything.
fn replace<'t, E>(
    text: &[u8],
    mut with: impl FnMut(Line<'_>) -> Result<Option<&'t [u8]>, E>,
) -> Result<Vec<u8>, E> {
    let mut scanner = Scanner::default();
    let mut out = Vec::with_capacity(text.len());
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        match with(scanner.line(line))? {
            Some(instead) => {
                out.extend_from_slice(instead);
                out.extend(line.ends_with(b"\n").then_some(b'\n'));
            }
            None => out.extend_from_slice(line),
        }
    }
    Ok(out)
}

/// Goes through preprocessed source line by line. There are no comments any more, and nothing but a raw string goes over the end of a line.
#[derive(Default)]
struct Scanner {
    /// What ends the raw string in which the line begins.
    raw: Option<Vec<u8>>,
    /// The word, or the other character, that came last.
    last: Vec<u8>,
}

impl Scanner {
    fn line<'a>(&mut self, line: &'a [u8]) -> Line<'a> {
        let directive = line.trim_ascii().strip_prefix(b"#").filter(|_| self.raw.is_none());
        let Some(directive) = directive.map(<[u8]>::trim_ascii) else {
            self.code(line);
            return Line::Other;
        };
        if directive.first().is_some_and(u8::is_ascii_digit) {
            return Line::From(directive);
        }
        let mut words = directive.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        if (words.next(), words.next()) != (Some(b"pragma"), Some(b"CPT")) {
            return Line::Other;
        }
        let before = match &self.last[..] {
            b")" | b"else" | b"do" => Before::Head,
            _ => Before::Other,
        };
        // What comes next comes after a statement.
        self.last = b";".to_vec();
        Line::Pragma { before, more: words.next().is_some() }
    }

    /// Code, of which only the last word is remembered.
    fn code(&mut self, line: &[u8]) {
        let mut rest = line;
        loop {
            if let Some(end) = &self.raw {
                let Some(at) = rest.windows(end.len()).position(|window| window == &end[..]) else { return };
                rest = &rest[at + end.len()..];
                self.raw = None;
                self.last = b"\"".to_vec();
            }
            let Some(first) = rest.first().copied() else { return };
            let length = match first {
                b'"' => match self.raw_ends(rest) {
                    Some((end, length)) => {
                        self.raw = Some(end);
                        length
                    }
                    None => quoted(rest),
                },
                b'\'' => quoted(rest),
                // A number's apostrophes are no quotes.
                _ if is_word(first) => {
                    let number = first.is_ascii_digit();
                    let end = rest.iter().position(|byte| !(is_word(*byte) || number && *byte == b'\''));
                    end.unwrap_or(rest.len())
                }
                _ => 1,
            };
            let (token, behind) = rest.split_at(length);
            if !first.is_ascii_whitespace() {
                self.last = token.to_vec();
            }
            rest = behind;
        }
    }

    /// What ends the raw string that begins here, if one does, and how long its beginning is.
    fn raw_ends(&self, quote: &[u8]) -> Option<(Vec<u8>, usize)> {
        if ![&b"R"[..], b"LR", b"uR", b"UR", b"u8R"].contains(&&self.last[..]) {
            return None;
        }
        let open = quote.iter().position(|byte| *byte == b'(')?;
        Some(([b")", &quote[1..open], b"\""].concat(), open + 1))
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// The length of a literal in quotes; at most to the end of the line.
fn quoted(text: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = text.get(at) {
        match byte {
            b'\\' => at += 2,
            _ if *byte == text[0] => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn device(text: &str) -> Result<Option<String>, String> {
        let marked = marked(text.as_bytes()).map_err(|misplaced| misplaced.to_string())?;
        Ok(marked.map(|marked| String::from_utf8(marked).unwrap()))
    }

    const STATEMENT: &str = r#"asm volatile(".pragma \"cpt\";" ::: "memory");"#;

    #[test]
    fn a_pragma_becomes_a_statement_and_lines_stay_where_they_are() {
        let text = "# 1 \"a.cu\"\nfor (;;) { x++;\n  #  pragma \t CPT \n}\n";
        let expected = format!("# 1 \"a.cu\"\nfor (;;) {{ x++;\n{STATEMENT}\n}}\n");
        assert_eq!(device(text), Ok(Some(expected.clone())));
        assert_eq!(without(text.as_bytes()).unwrap(), b"# 1 \"a.cu\"\nfor (;;) { x++;\n\n}\n");
        assert_eq!(source(text.as_bytes()), "a.cu");
        assert!(has_statements(expected.as_bytes()) && !has_statements(text.as_bytes()));
    }

    #[test]
    fn what_has_none_is_left_alone() {
        for text in ["", "int x;\n#pragma unroll\n", "#pragma CPTX\n", "#pragma omp CPT\n", "x = \"\n"] {
            assert_eq!((device(text), without(text.as_bytes())), (Ok(None), None), "{text}");
        }
    }

    #[test]
    fn strings_are_no_source() {
        for before in ["R\"(", "u8R\"x(", "f(1'000, '\"', \"\\\"\", LR\"("] {
            let inside = format!("{before}\n#pragma CPT\n");
            assert_eq!(device(&inside), Ok(None), "{before}");
        }
        for text in ["R\"a()a\";", "\"R\\\"(\";", "xR\"(\";", "'\\'';", "0xR'1;", "R\"(\n)\" \")\";"] {
            assert!(device(&format!("{text}\n#pragma CPT\n")).unwrap().is_some(), "{text}");
        }
    }

    #[test]
    fn a_mark_is_not_what_a_loop_is_for() {
        for head in ["for (;;)", "if (x) y(); else", "do", "while (f(\")\"))"] {
            let text = format!("# 7 \"b.cuh\" 1 3\nint x;\n{head}\n# 20 \"b.cuh\"\n\n#pragma CPT\nx++;\n");
            let said = device(&text).unwrap_err();
            assert!(said.starts_with("b.cuh:21: #pragma CPT would be all that"), "{said}");
        }
        for before in ["x++;", "{", "}", "label:", "redo", "undo", "// )\n;"] {
            assert!(device(&format!("{before}\n#pragma CPT\n")).unwrap().is_some(), "{before}");
        }
        assert!(device("#pragma CPT 3\n").unwrap_err().contains("no further words"));
    }

    #[test]
    fn ptx_without_marks_has_as_many_lines() {
        let ptx = b"\t.pragma \"nounroll\";\n\t.pragma \"cpt\";\nret;";
        assert_eq!(unmarked_ptx(ptx).unwrap(), b"\t.pragma \"nounroll\";\n\nret;");
        assert_eq!(unmarked_ptx(b"// .pragma \"cpt\";\n"), None);
    }
}
