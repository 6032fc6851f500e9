//! The patterns of a schema, and their cost.
//!
//! A search takes at most one step for each character and each place of the pattern. Look-around and
//! back-references have no such bound, so they are refused.

use std::collections::HashMap;

use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{Ast, RepetitionKind, RepetitionRange};

use super::SchemaViolation;

/// Patterns that were checked, by their text.
#[derive(Debug, Default)]
pub(super) struct Patterns(HashMap<String, Pattern>);

#[derive(Debug)]
struct Pattern {
    places: u64,
    /// The compiled pattern, only if it decides which fields a schema looks at.
    regex: Option<regex::Regex>,
}

/// Steps that parsing a pattern costs, whatever its length.
const READ_STEPS: u64 = 20;
/// Places of a pattern that are compiled in one step.
const PLACES_A_STEP: u64 = 16;
/// Places of a pattern that one step compares with a character.
const SEARCHED_A_STEP: u64 = 32;
/// Places that a class such as `\p{L}` counts.
const CLASS_PLACES: u64 = 200;

impl Patterns {
    /// Parses a pattern; returns the steps to compile it.
    pub(super) fn add(&mut self, text: &str, of_fields: bool) -> Result<u64, SchemaViolation> {
        let known = self.0.get(text).is_some_and(|known| known.regex.is_some() || !of_fields);
        if known {
            return Ok(0);
        }
        let invalid = || {
            let shown: String = text.chars().take(100).collect();
            let rule = format!(
                "must have patterns without look-around and back-references, whose work has no bound, and has {shown:?}; \
                 several patterns can be joined by allOf and not"
            );
            SchemaViolation::Invalid(rule)
        };
        let rust = jsonschema_regex::to_rust_regex(text).map_err(|()| invalid())?;
        let ast = Parser::new().parse(&rust).map_err(|_| invalid())?;
        let steps = READ_STEPS.saturating_add(places(&ast, CLASS_PLACES) / PLACES_A_STEP);
        // A pattern that is too costly is refused before it is compiled.
        let regex = if of_fields && steps <= super::SCHEMA_STEPS_MAX {
            Some(regex::Regex::new(&rust).map_err(|_| invalid())?)
        } else {
            None
        };
        self.0.insert(text.to_owned(), Pattern { places: places(&ast, 4), regex });
        Ok(steps)
    }

    /// The steps of a search.
    pub(super) fn steps(&self, pattern: &str, text: &str) -> u64 {
        let places = self.0.get(pattern).map_or(u64::MAX, |pattern| pattern.places);
        1 + places.saturating_mul(text.len() as u64) / SEARCHED_A_STEP
    }

    /// Whether the pattern of a field fits its name.
    pub(super) fn is_match(&self, pattern: &str, text: &str) -> bool {
        let regex = self.0.get(pattern).and_then(|pattern| pattern.regex.as_ref());
        regex.is_none_or(|regex| regex.is_match(text))
    }
}

/// Whether a text can be a pattern, without compiling it.
pub(super) fn is_pattern(text: &str) -> bool {
    jsonschema_regex::to_rust_regex(text).is_ok_and(|rust| Parser::new().parse(&rust).is_ok())
}

/// The places at which a search can be at one time. `class` is the count for a class of many characters.
fn places(ast: &Ast, class: u64) -> u64 {
    match ast {
        Ast::Empty(_) | Ast::Flags(_) | Ast::Literal(_) | Ast::Assertion(_) => 1,
        Ast::ClassBracketed(bracketed) if !bracketed.negated && is_short(bracketed) => 1,
        Ast::Dot(_) => 4,
        Ast::ClassUnicode(_) | Ast::ClassPerl(_) | Ast::ClassBracketed(_) => class,
        Ast::Group(group) => places(&group.ast, class),
        Ast::Alternation(of) => of.asts.iter().map(|ast| places(ast, class)).fold(1, u64::saturating_add),
        Ast::Concat(of) => of.asts.iter().map(|ast| places(ast, class)).fold(0, u64::saturating_add),
        Ast::Repetition(repeated) => {
            let times = match repeated.op.kind {
                RepetitionKind::Range(
                    RepetitionRange::Exactly(times)
                    | RepetitionRange::AtLeast(times)
                    | RepetitionRange::Bounded(_, times),
                ) => times.max(1),
                RepetitionKind::ZeroOrOne | RepetitionKind::ZeroOrMore | RepetitionKind::OneOrMore => 1,
            };
            places(&repeated.ast, class).saturating_mul(times.into())
        }
    }
}

/// Whether a class lists its characters or ranges, as `[a-z0-9_]`.
fn is_short(class: &regex_syntax::ast::ClassBracketed) -> bool {
    use regex_syntax::ast::{ClassSet, ClassSetItem};
    let plain = |item: &ClassSetItem| {
        matches!(item, ClassSetItem::Literal(_) | ClassSetItem::Range(_) | ClassSetItem::Empty(_))
    };
    match &class.kind {
        ClassSet::Item(ClassSetItem::Union(union)) => union.items.iter().all(plain),
        ClassSet::Item(item) => plain(item),
        ClassSet::BinaryOp(_) => false,
    }
}
