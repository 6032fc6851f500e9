//! Query parameters: handlers take each by name, and an untaken one is refused by name.

use std::str::FromStr;
use std::time::Duration;

use tasklane_core::id::Name;
use tasklane_core::time::Timestamp;
use tasklane_runtime::request::{parse_span, parse_time};

use crate::extract::parse_id;
use crate::problem::{self, Problem};

/// The untaken parameters of a query.
#[derive(Debug)]
pub(crate) struct Params(Vec<(String, String)>);

impl Params {
    /// The most rows of a page.
    pub(crate) const LIMIT_MAX: usize = 1000;

    pub(crate) fn new(pairs: Vec<(String, String)>) -> Self {
        Self(pairs)
    }

    /// Takes a parameter that may occur once.
    pub(crate) fn take(&mut self, name: &str) -> Result<Option<String>, Problem> {
        let Some(at) = self.0.iter().position(|(key, _)| key == name) else { return Ok(None) };
        let (_, value) = self.0.remove(at);
        if self.0.iter().any(|(key, _)| key == name) {
            return Err(Problem::parameter(name, "must be given once"));
        }
        Ok(Some(value))
    }

    /// Takes all values of a parameter, given several times or separated by commas.
    pub(crate) fn take_list(&mut self, name: &str) -> Vec<String> {
        let taken = self.0.extract_if(.., |(key, _)| key == name);
        let values: Vec<String> = taken.map(|(_, value)| value).collect();
        values.iter().flat_map(|value| value.split(',')).map(str::to_owned).collect()
    }

    /// Takes pairs: `NAME.KEY=VALUE`, and `NAME=KEY=VALUE`, which generated clients send. Each may be given several times.
    pub(crate) fn take_pairs(&mut self, name: &str) -> Result<Vec<(String, String)>, Problem> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for (key, value) in self.0.extract_if(.., |(key, _)| key == name || key_below(key, name).is_some()) {
            let pair = match key_below(&key, name) {
                Some(key) => Some((key.to_owned(), value)),
                None => value.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())),
            };
            let pair = pair.filter(|(key, _)| !key.is_empty());
            pairs.push(pair.ok_or_else(|| Problem::parameter(name, "must be KEY=VALUE"))?);
        }
        Ok(pairs)
    }

    /// Takes a parameter and reads it.
    pub(crate) fn parse<T: FromStr>(&mut self, name: &str, rule: &str) -> Result<Option<T>, Problem> {
        let Some(text) = self.take(name)? else { return Ok(None) };
        text.parse().map(Some).map_err(|_| Problem::parameter(name, rule))
    }

    pub(crate) fn name(&mut self, name: &str) -> Result<Option<Name>, Problem> {
        let Some(text) = self.take(name)? else { return Ok(None) };
        Name::new(&text).map(Some).map_err(|error| Problem::parameter(name, error.to_string()))
    }

    pub(crate) fn id(&mut self, name: &str) -> Result<Option<tasklane_core::id::TaskId>, Problem> {
        let Some(text) = self.take(name)? else { return Ok(None) };
        let id = parse_id(&text).ok_or_else(|| Problem::parameter(name, "must be a UUID with hyphens"))?;
        Ok(Some(id))
    }

    pub(crate) fn time(&mut self, name: &str) -> Result<Option<Timestamp>, Problem> {
        let Some(text) = self.take(name)? else { return Ok(None) };
        parse_time(&text).map(Some).map_err(|rule| Problem::parameter(name, rule))
    }

    /// A duration; a bare number is seconds.
    pub(crate) fn span(&mut self, name: &str) -> Result<Option<Duration>, Problem> {
        let Some(mut text) = self.take(name)? else { return Ok(None) };
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            text.push('s');
        }
        parse_span(&text).map(Some).map_err(|rule| Problem::parameter(name, rule))
    }

    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, Problem> {
        Ok(self.parse(name, "must be true or false")?.unwrap_or(false))
    }

    /// How many rows are wanted.
    pub(crate) fn limit(&mut self, default: usize) -> Result<usize, Problem> {
        let rule = format!("must be a whole number between 1 and {}", Self::LIMIT_MAX);
        let limit = self.parse("limit", &rule)?.unwrap_or(default);
        if !(1..=Self::LIMIT_MAX).contains(&limit) {
            return Err(Problem::parameter("limit", rule));
        }
        Ok(limit)
    }

    /// Refuses the untaken parameters.
    pub(crate) fn finish(self) -> Result<(), Problem> {
        match self.0.into_iter().next() {
            None => Ok(()),
            Some((name, _)) => {
                let shown: String = name.chars().take(64).collect();
                let detail = format!("{shown:?} is not a known parameter of this path");
                Err(Problem::new(&problem::UNKNOWN_PARAMETER, detail).field(shown))
            }
        }
    }
}

/// The key of a pair whose parameter is `NAME.KEY`.
fn key_below<'a>(parameter: &'a str, name: &str) -> Option<&'a str> {
    parameter.strip_prefix(name)?.strip_prefix('.').filter(|key| !key.is_empty())
}
