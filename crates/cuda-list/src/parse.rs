//! From the text of a chapter to the model.

use crate::{
    ctype::CType,
    model::{Chapter, Class, Count, Function, Implicit, List, Param, PerThread, Replay, Role, Version},
};

/// A mistake in the list.
#[derive(Debug, thiserror::Error)]
#[error("{file}.abi:{line}: {problem}: `{text}`")]
pub struct ParseError {
    file: String,
    line: usize,
    problem: &'static str,
    text: String,
}

type Problem = &'static str;

/// Reads one chapter into `list`.
///
/// # Errors
/// The first mistake, with its line.
pub fn parse_chapter(list: &mut List, file: &str, text: &str) -> Result<(), ParseError> {
    let mut reader = Reader {
        chapter: Chapter {
            name: file.to_owned(),
            title: String::new(),
            header: "cuda.h".to_owned(),
            functions: Vec::new(),
        },
        list,
        unsupported: None,
        open: None,
    };
    for (index, line) in text.lines().enumerate() {
        let line_text = line.trim();
        if line_text.is_empty() || line_text.starts_with('#') {
            continue;
        }
        reader.line(line_text).map_err(|problem| ParseError {
            file: file.to_owned(),
            line: index + 1,
            problem,
            text: line_text.to_owned(),
        })?;
    }
    let whole_file = |problem| ParseError { file: file.to_owned(), line: 1, problem, text: String::new() };
    let chapter = reader.finish().map_err(whole_file)?;
    if !chapter.functions.is_empty() {
        list.chapters.push(chapter);
    }
    Ok(())
}

struct Reader<'a> {
    list: &'a mut List,
    chapter: Chapter,
    /// The reason that covers every version of the function being read.
    unsupported: Option<String>,
    /// A version whose parameter list goes on in the next line.
    open: Option<String>,
}

impl Reader<'_> {
    fn line(&mut self, line: &str) -> Result<(), Problem> {
        if let Some(mut open) = self.open.take() {
            open.push(' ');
            open.push_str(line);
            return self.version(open);
        }
        let (word, rest) = line.split_once(' ').map_or((line, ""), |(word, rest)| (word, rest.trim()));
        match word {
            "chapter" => self.chapter.title = rest.to_owned(),
            "header" => self.chapter.header = rest.to_owned(),
            "enum" => {
                self.list.enums.insert(rest.to_owned());
            }
            "fn" => {
                self.close_function()?;
                self.chapter.functions.push(Function {
                    name: rest.to_owned(),
                    class: Class::Roundtrip,
                    touches: Vec::new(),
                    replay: Replay::Nothing,
                    limits: None,
                    never: None,
                    versions: Vec::new(),
                });
            }
            "class" => self.function()?.class = class(rest)?,
            "touches" => self.function()?.touches = vec![implicit(rest)?],
            "replay" => self.function()?.replay = replay(rest)?,
            "limits" if rest.is_empty() => return Err("a limit is missing"),
            "limits" => self.function()?.limits = Some(rest.to_owned()),
            "never" if rest.is_empty() => return Err("a reason is missing"),
            "never" => self.function()?.never = Some(rest.to_owned()),
            "unsupported" if rest.is_empty() => return Err("a reason is missing"),
            "unsupported" => match self.function()?.versions.last_mut() {
                Some(version) => version.unsupported = Some(rest.to_owned()),
                None => self.unsupported = Some(rest.to_owned()),
            },
            _ if word.bytes().all(|b| b.is_ascii_digit()) => return self.version(line.to_owned()),
            _ => return Err("unknown word"),
        }
        Ok(())
    }

    fn function(&mut self) -> Result<&mut Function, Problem> {
        self.chapter.functions.last_mut().ok_or("stands before the first fn")
    }

    /// `3020 cuMemAlloc_v2(…)`, once its parentheses are closed.
    fn version(&mut self, text: String) -> Result<(), Problem> {
        if text.contains('(') && !text.ends_with(')') {
            self.open = Some(text);
            return Ok(());
        }
        let (since, rest) = text.split_once(' ').ok_or("a symbol is missing")?;
        let since = since.parse().map_err(|_| "bad release number")?;
        let (symbol, params) = match rest.trim().trim_end_matches(')').split_once('(') {
            Some((symbol, params)) => (symbol, Some(parameters(params)?)),
            None => (rest.trim(), None),
        };
        let unsupported = self.unsupported.clone();
        let function = self.function()?;
        if base_name(symbol) != function.name {
            return Err("the symbol is not a version of this function");
        }
        if let Some(normal) = symbol.strip_suffix("_ptsz").or(symbol.strip_suffix("_ptds")) {
            if params.is_some() {
                return Err("a per-thread variant has the parameters of its version");
            }
            let version = function.versions.last_mut().filter(|v| v.symbol == normal);
            let version = version.ok_or("a per-thread variant follows its own version")?;
            version.per_thread = Some(PerThread { since, symbol: symbol.to_owned() });
            return Ok(());
        }
        let params = match (params, function.versions.last()) {
            (Some(params), _) => params,
            (None, Some(previous)) => previous.params.clone(),
            (None, None) => return Err("the first version needs parameters"),
        };
        if function.versions.last().is_some_and(|v| v.since >= since) {
            return Err("versions stand in the order of their releases");
        }
        let symbol = symbol.to_owned();
        function.versions.push(Version {
            since,
            implementation: symbol.clone(),
            symbol,
            params,
            per_thread: None,
            unsupported,
        });
        Ok(())
    }

    /// Gives every version of a run with equal parameters the implementation of the newest.
    fn close_function(&mut self) -> Result<(), Problem> {
        self.unsupported = None;
        if self.open.is_some() {
            return Err("a parameter list is not closed");
        }
        let Some(function) = self.chapter.functions.last_mut() else { return Ok(()) };
        if function.versions.is_empty() {
            return Err("the function above has no version");
        }
        for newer in (1..function.versions.len()).rev() {
            if let [.., older, version] = &mut function.versions[..=newer]
                && older.params == version.params
                && older.unsupported == version.unsupported
            {
                older.implementation.clone_from(&version.implementation);
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Chapter, Problem> {
        self.close_function()?;
        if self.chapter.title.is_empty() { Err("the chapter has no title") } else { Ok(self.chapter) }
    }
}

/// The name without `_vN`, `_ptsz` and `_ptds`.
pub(crate) fn base_name(symbol: &str) -> &str {
    let name = symbol.strip_suffix("_ptsz").or(symbol.strip_suffix("_ptds")).unwrap_or(symbol);
    match name.rsplit_once("_v") {
        Some((base, version)) if version.bytes().all(|b| b.is_ascii_digit()) => base,
        _ => name,
    }
}

fn class(word: &str) -> Result<Class, Problem> {
    match word {
        "client" => Ok(Class::Client),
        "pipelined" => Ok(Class::Pipelined),
        "roundtrip" => Ok(Class::Roundtrip),
        _ => Err("unknown class"),
    }
}

fn implicit(word: &str) -> Result<Implicit, Problem> {
    if word == "current" { Ok(Implicit::Current) } else { Err("unknown object") }
}

fn replay(text: &str) -> Result<Replay, Problem> {
    let mut words = text.splitn(3, ' ');
    let (Some(verb), Some(kind)) = (words.next(), words.next()) else {
        return Err("a kind of object is missing");
    };
    let (kind, what) = (kind.to_owned(), words.next().unwrap_or_default().to_owned());
    match verb {
        "creates" => Ok(Replay::Creates(kind, what)),
        "destroys" => Ok(Replay::Destroys(kind, what)),
        "changes" => Ok(Replay::Changes(kind, what)),
        _ => Err("unknown replay class"),
    }
}

fn parameters(text: &str) -> Result<Vec<Param>, Problem> {
    text.split(',').map(str::trim).filter(|p| !p.is_empty()).map(parameter).collect()
}

fn parameter(text: &str) -> Result<Param, Problem> {
    let (declaration, role) = match text.split_once('[') {
        Some((head, count)) => {
            let (declaration, word) = head.rsplit_once(' ').ok_or("a role is missing")?;
            let count = count.strip_suffix(']').ok_or("a count is not closed")?;
            (declaration, pointer_role(word, Count::Rule(count.to_owned())).ok_or("unknown role")?)
        }
        None => match text.rsplit_once(' ') {
            Some((head, "stream")) => (head, Role::Stream),
            Some((head, "opaque")) => (head, Role::Opaque),
            Some((head, word)) => match pointer_role(word, Count::One) {
                Some(role) => (head, role),
                None => (text, Role::Value),
            },
            None => return Err("a parameter has a type and a name"),
        },
    };
    let (c_type, name) = CType::parse_declaration(declaration).ok_or("not a declaration")?;
    if (c_type.depth == 0) != matches!(role, Role::Value | Role::Stream) {
        return Err("pointers, and only they, are in, out, inout or opaque");
    }
    Ok(Param { c_type, name, role })
}

fn pointer_role(word: &str, count: Count) -> Option<Role> {
    match word {
        "in" => Some(Role::In(count)),
        "out" => Some(Role::Out(count)),
        "inout" => Some(Role::InOut(count)),
        _ => None,
    }
}
