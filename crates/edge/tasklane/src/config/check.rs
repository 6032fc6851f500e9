//! Checks that span several fields. All faults are reported together, each with its key and its remedy.

use std::time::Duration;

use super::fault::Fault;
use super::shares::Shares;
use super::tree::{Config, LimitsConfig};
use super::units::{format_duration, format_size};
use super::url::AdapterUrl;

/// What each role can be played by.
const STORES: &[&str] = &["sqlite", "postgres", "redis"];
const COORDINATORS: &[&str] = &["local", "postgres", "redis"];
const BUSES: &[&str] = &["local", "direct", "redis"];
const ARCHIVES: &[&str] = &["postgres"];

/// The shortest token of an API that other machines can reach, in characters.
const TOKEN_LEN_MIN: usize = 16;

/// A session shorter than this many renewals is lost by one slow answer.
const RENEWALS_MIN: u32 = 3;

/// The sum of grace times has to end before a supervisor sends SIGKILL to the process itself.
const GRACE_MAX: Duration = Duration::from_hours(24);

/// Whoever asks from far away needs this long.
const TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// The fault of an origin whose pages may call the API.
fn cors_fault(origin: &str, has_token: bool) -> Option<String> {
    if origin == "*" {
        let message = "`*` lets every page of the web run commands through a browser on this machine: set `token`, or name \
            the origins";
        return (!has_token).then(|| message.to_owned());
    }
    let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
    let is_origin = host.is_some_and(|host| {
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte))
    });
    (!is_origin).then(|| {
        format!("{origin:?} is not an origin; use a scheme, a host and, if it is not the default, a port, without a path: \
            https://app.example.com")
    })
}

/// The fault of the token. Every client that reaches the API can try tokens.
fn token_fault(config: &Config) -> Option<String> {
    let token = config.token.as_ref()?.reveal().trim();
    let len = token.chars().count();
    let public = config.listen.filter(|listen| !listen.ip().is_loopback());
    match public {
        _ if len == 0 => Some("must not be empty; leave it out for no token".to_owned()),
        Some(listen) if len < TOKEN_LEN_MIN => Some(format!(
            "has {len} characters, and other machines can reach {listen}: use at least {TOKEN_LEN_MIN} random characters, such as \
             from `openssl rand -hex 32`"
        )),
        _ => None,
    }
}

/// Everything that is wrong with a config whose fields are right one by one.
pub(super) fn check(config: &Config) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut fault = |key: &str, message: String| faults.push(Fault::new(key, message));

    if let Some(listen) = config.listen
        && !listen.ip().is_loopback()
        && config.token.is_none()
    {
        fault(
            "listen",
            format!(
                "{listen} can be reached from other machines, and no token is set. Set `token` (or TASKLANE_TOKEN), \
                 or listen on 127.0.0.1:{}",
                listen.port()
            ),
        );
    }
    if config.health_listen.is_some_and(|health| health.port() > 0 && Some(health) == config.listen) {
        fault("health_listen", "is the address of the API; use another port, or leave it out".to_owned());
    }
    if let Some(message) = token_fault(config) {
        fault("token", message);
    }
    for origin in &config.cors_origins {
        if let Some(message) = cors_fault(origin, config.token.is_some()) {
            fault("cors_origins", message);
        }
    }
    let roles: [(&str, Option<&AdapterUrl>, &[&str], &str); 4] = [
        ("store", config.store.as_ref(), STORES, "sqlite:///path/to/tasklane.db, postgres://… or redis://…"),
        ("coordinator", config.coordinator.as_ref(), COORDINATORS, "postgres://… or redis://…"),
        ("bus", config.bus.as_ref(), BUSES, "direct://address:port or redis://…"),
        ("archive", config.archive.as_ref(), ARCHIVES, "postgres://…"),
    ];
    for (key, url, known, like) in roles {
        if let Some(url) = url
            && !known.contains(&url.scheme())
        {
            fault(key, format!("{url:?} has no {key}; use {like}"));
        }
    }
    if let Some(bus) = config.bus.as_ref().filter(|bus| bus.scheme() == "direct")
        && !bus.rest().is_empty()
        && bus.rest().parse::<std::net::SocketAddr>().is_err()
    {
        fault("bus", format!("{bus} does not name an IP address and a port; use direct://0.0.0.0:7071"));
    }
    let store = config.store_url();
    let is_shared = store.scheme() != "sqlite" && STORES.contains(&store.scheme());
    if is_shared && config.is_cluster() && config.bus_url().scheme() == "local" {
        fault("bus", "processes of a cluster need a bus; use direct://address:port or redis://…".to_owned());
    }
    if is_shared && !config.is_cluster() {
        fault("coordinator", "a shared store needs a coordinator; leave this setting out".to_owned());
    }
    if config.is_cluster() && store.scheme() == "sqlite" {
        fault("store", "SQLite is for one process; a cluster needs postgres://… or redis://…".to_owned());
    }
    if let Err(message) = Shares::of(config) {
        fault("postgres_connections", message);
    }
    if let Some(advertise) = &config.advertise
        && advertise
            .rsplit_once(':')
            .is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err())
    {
        fault("advertise", format!("{advertise:?} is not a host and a port; use 10.0.0.5:7070"));
    }

    let session = &config.session;
    let pairs = [
        ("session.server_ttl", session.server_ttl, "session.server_renew_every", session.server_renew_every),
        ("session.worker_ttl", session.worker_ttl, "session.worker_renew_every", session.worker_renew_every),
    ];
    for (ttl_key, ttl, renew_key, renew) in pairs {
        if renew.is_zero() {
            fault(renew_key, "must be longer than nothing".to_owned());
        } else if ttl < renew * RENEWALS_MIN {
            fault(
                ttl_key,
                format!(
                    "{} is less than three renewals: make it at least {}, or {renew_key} at most {}",
                    format_duration(ttl),
                    format_duration(renew * RENEWALS_MIN),
                    format_duration(Duration::from_millis(
                        u64::try_from((ttl / RENEWALS_MIN).as_millis()).unwrap_or(u64::MAX)
                    )),
                ),
            );
        }
    }

    if config.retention.every.is_zero() {
        fault("retention.every", "must be longer than nothing".to_owned());
    }
    if config.retention.request_ids < config.retention.tasks {
        fault(
            "retention.request_ids",
            format!(
                "{} is shorter than retention.tasks ({}): request ids are remembered at least as long as their tasks",
                format_duration(config.retention.request_ids),
                format_duration(config.retention.tasks)
            ),
        );
    }

    let limits = &config.limits;
    let pieces = [
        ("limits.payload_bytes_max", limits.payload_bytes_max),
        ("limits.result_bytes_max", limits.result_bytes_max),
    ];
    for (key, bytes) in pieces {
        if bytes > LimitsConfig::PIECE_BYTES_MAX {
            fault(
                key,
                format!(
                    "{} exceeds the limit of all stores: use at most {}",
                    format_size(bytes),
                    format_size(LimitsConfig::PIECE_BYTES_MAX)
                ),
            );
        }
    }
    if limits.body_bytes_max < limits.payload_bytes_max {
        fault(
            "limits.body_bytes_max",
            format!(
                "{} is less than limits.payload_bytes_max ({}): a request with such a payload would be refused",
                format_size(limits.body_bytes_max),
                format_size(limits.payload_bytes_max)
            ),
        );
    }

    for (key, timeout) in
        [("limits.request_timeout", limits.request_timeout), ("limits.write_timeout", limits.write_timeout)]
    {
        if timeout < TIMEOUT_MIN {
            fault(key, format!("{} is too short: at least 1s", format_duration(timeout)));
        }
    }

    for (key, grace) in
        [("worker.stop_grace", config.worker.stop_grace), ("worker.drain_grace", config.worker.drain_grace)]
    {
        if grace > GRACE_MAX {
            fault(key, format!("{} is too long: at most 1d", format_duration(grace)));
        }
    }
    for (key, program, like) in [
        ("worker.shell", &config.worker.shell, "/bin/sh"),
        ("worker.python", &config.worker.python, "python3"),
    ] {
        if program.trim().is_empty() {
            fault(key, format!("must name a program, such as {like}"));
        }
    }
    for name in &config.worker.env {
        let start = name.strip_suffix('*').unwrap_or(name);
        let all_that_begin = start.len() < name.len();
        if name.is_empty() || start.contains(['=', '*', '\0']) {
            fault("worker.env", format!("{name:?} is not the name of a variable"));
        } else if start.starts_with("TASKLANE_") || all_that_begin && "TASKLANE_".starts_with(start) {
            fault("worker.env", format!("{name} would give tasks the worker's own secrets"));
        }
    }
    if let Some(code) =
        config.worker.retry_later_exit_codes.intersection(&config.worker.never_retry_exit_codes).next()
    {
        fault("worker.never_retry_exit_codes", format!("{code} is in worker.retry_later_exit_codes too"));
    }
    if config.worker.retry_later_exit_codes.contains(&0) || config.worker.never_retry_exit_codes.contains(&0)
    {
        fault("worker.never_retry_exit_codes", "0 is success".to_owned());
    }
    if let Some(message) = wrong_filter(&config.log.level) {
        fault("log.level", message);
    }
    faults
}

/// The names of levels, the quietest first.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The fault of a list of levels and `part=level`. The log would take a misspelt level for the name of a
/// part, and print no lines of all other parts.
fn wrong_filter(filter: &str) -> Option<String> {
    let is_level = |text: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(text));
    let in_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-' | '.');
    filter.split(',').map(str::trim).find_map(|directive| {
        let level = match directive.split_once('=') {
            Some((part, level)) if !part.is_empty() && part.chars().all(in_name) => level,
            Some((part, _)) => {
                return Some(format!("{part:?} is not the name of a module, such as tasklane_runtime"));
            }
            None => directive,
        };
        let known = LEVELS[1..].join(", ");
        (!is_level(level)).then(|| {
            format!(
                "{level:?} is not a level; use {known}, off, or filters such as info,tasklane_runtime=debug"
            )
        })
    })
}
