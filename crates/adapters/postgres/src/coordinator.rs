//! The coordinator: sessions and grants as rows, one statement for each verb.
//!
//! Each session has a number that rises with every renewal. Every process that watches detects failures by
//! its own steady clock (`tasklane_ports::failure_detector`): no time of the server is used. Every change of
//! members or grants locks the one row of `members` first and raises its revision, so changes become visible
//! in the order of their revisions. Renewals leave that row alone. A process that only holds a session has
//! one connection and sends nothing but its renewals.
//!
//! Statements are not prepared: there are a few in a second, and so a pooler may stand in between.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tasklane_core::clock_watch::Reference;
use tasklane_core::id::{LaneId, SessionId};
use tasklane_core::member::{Member, Role};
use tasklane_core::time::Timestamp;
use tasklane_ports::failure_detector::Renewal;
use tasklane_ports::membership::{
    ChangeNotices, MembershipSnapshot, MembershipTable, MembershipWatcher, RenewalNumbers, RenewalOutcome,
};
use tasklane_ports::{
    Coordinator, CoordinatorCapabilities, CoordinatorError, OpenSession, SessionToken, StoreError, View,
    Watch, codec,
};
use tokio::sync::Semaphore;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use crate::connect::{Connection, Database, PostgresOptions, Purpose};
use crate::error::{CallError, unexpected};
use crate::listen::{ListenState, NotificationListener};
use crate::migrate::{self, migrate};
use crate::rows::{column, number};

/// Failure detectors read at least every 200 milliseconds, and allow for a gap of a third of a TTL.
const TTL_MIN: Duration = Duration::from_secs(1);
/// A renewal that takes longer is sent again over another connection, while there is time for it.
const RESPONSE_TIMEOUT_MAX: Duration = Duration::from_secs(2);
/// Most idle connections that are kept.
const IDLE_MAX: usize = 4;
/// The connection that listens.
const LISTENING: usize = 1;

/// The coordinator in a schema of a database. Its watches outlive it, until `disconnect`.
#[derive(Debug)]
pub struct PostgresCoordinator {
    members: Arc<Members>,
    watcher: MembershipWatcher,
}

impl PostgresCoordinator {
    /// The fewest connections that a coordinator works with.
    pub const CONNECTIONS_MIN: usize = Purpose::Coordinator.connections_min();

    /// Opens the coordinator that a URL names, as [`PostgresStore::connect`](crate::PostgresStore::connect)
    /// does. Where the store is reached through a pooler, the coordinator should bypass it, to receive
    /// notifications.
    pub async fn connect(url: &str, options: &PostgresOptions) -> Result<Self, StoreError> {
        let response_timeout = options.response_timeout.min(RESPONSE_TIMEOUT_MAX);
        let options = PostgresOptions { response_timeout, ..options.clone() };
        let database = Database::from_url(url, &options, Purpose::Coordinator)?;
        migrate(&database, &migrate::STORE).await?;
        let statements = Statements::new(&database.schema.quoted);
        let turns = Semaphore::new(options.connections - LISTENING);
        let channel = format!("tasklane_members_{}", database.schema.name);
        // The server refuses a longer name.
        let channel = channel.chars().take(63).collect();
        let members = Members {
            calls: Arc::new(Calls { database, turns, idle: Mutex::default() }),
            statements,
            channel,
            told: Arc::default(),
        };
        let members = Arc::new(members);
        let table: Arc<dyn MembershipTable> = Arc::clone(&members) as _;
        Ok(Self { members, watcher: MembershipWatcher::new(table) })
    }

    /// Warnings about the notifications of changes, in plain sentences; empty where they arrive, or no watch
    /// is open.
    pub fn warnings(&self) -> Vec<String> {
        self.members.told.warning().into_iter().collect()
    }

    /// Ends all watches and closes the connections. Sessions stay open.
    pub fn disconnect(&self) {
        self.watcher.close();
        self.members.calls.database.close();
        self.members.calls.lock().clear();
    }
}

#[async_trait]
impl Coordinator for PostgresCoordinator {
    fn capabilities(&self) -> CoordinatorCapabilities {
        CoordinatorCapabilities { ttl_min: TTL_MIN }
    }

    async fn open(&self, open: OpenSession) -> Result<SessionToken, CoordinatorError> {
        let OpenSession { session, ttl, role } = open;
        if ttl < TTL_MIN {
            return Err(CoordinatorError::TtlTooShort { ttl, min: TTL_MIN });
        }
        let Members { statements, channel, .. } = &*self.members;
        let secret = Uuid::from_u128(rand::random());
        let (ttl, role) = (millis(ttl), codec::encode(&role));
        let params: Params<'_> = &[
            (&session.0, Type::UUID),
            (&secret, Type::UUID),
            (&ttl, Type::INT8),
            (&role, Type::BYTEA),
            (channel, Type::TEXT),
        ];
        if_alive(self.members.flag(&statements.open, params).await?, session)?;
        Ok(SessionToken { session, secret: secret.simple().to_string() })
    }

    async fn renew(&self, token: &SessionToken) -> Result<(), CoordinatorError> {
        self.watcher.renew(token).await
    }

    fn clock(&self) -> Option<Reference> {
        self.watcher.clock()
    }

    async fn update(&self, token: &SessionToken, role: Role) -> Result<(), CoordinatorError> {
        let (secret, role) = (secret_of(token)?, codec::encode(&role));
        let Members { statements, channel, .. } = &*self.members;
        let params: Params<'_> = &[
            (&token.session.0, Type::UUID),
            (&secret, Type::UUID),
            (&role, Type::BYTEA),
            (channel, Type::TEXT),
        ];
        if_alive(self.members.flag(&statements.update, params).await?, token.session)
    }

    async fn close(&self, token: &SessionToken) -> Result<(), CoordinatorError> {
        let Ok(secret) = secret_of(token) else { return Ok(()) };
        let Members { statements, channel, .. } = &*self.members;
        let params: Params<'_> =
            &[(&token.session.0, Type::UUID), (&secret, Type::UUID), (channel, Type::TEXT)];
        self.members.flag(&statements.close, params).await?;
        Ok(())
    }

    async fn revoke(&self, session: SessionId) -> Result<(), CoordinatorError> {
        let params: Params<'_> = &[(&session.0, Type::UUID)];
        self.members.query(&self.members.statements.revoke, params).await?;
        Ok(())
    }

    async fn acquire(&self, token: &SessionToken, lane: LaneId) -> Result<bool, CoordinatorError> {
        let held = self.on_lane(&self.members.statements.acquire, token, lane).await?;
        held.ok_or(CoordinatorError::SessionEnded { session: token.session })
    }

    async fn release(&self, token: &SessionToken, lane: LaneId) -> Result<(), CoordinatorError> {
        if_alive(self.on_lane(&self.members.statements.release, token, lane).await?, token.session)
    }

    async fn watch(&self) -> Result<Box<dyn Watch>, CoordinatorError> {
        self.watcher.watch().await
    }
}

impl PostgresCoordinator {
    async fn on_lane(
        &self,
        sql: &str,
        token: &SessionToken,
        lane: LaneId,
    ) -> Result<Option<bool>, CoordinatorError> {
        let (secret, lane) = (secret_of(token)?, i32::from(lane.0));
        let params: Params<'_> = &[
            (&token.session.0, Type::UUID),
            (&secret, Type::UUID),
            (&lane, Type::INT4),
            (&self.members.channel, Type::TEXT),
        ];
        self.members.flag(sql, params).await
    }
}

fn if_alive(answer: Option<bool>, session: SessionId) -> Result<(), CoordinatorError> {
    if answer == Some(true) { Ok(()) } else { Err(CoordinatorError::SessionEnded { session }) }
}

/// A token that is no UUID is a wrong one.
fn secret_of(token: &SessionToken) -> Result<Uuid, CoordinatorError> {
    Uuid::try_parse(&token.secret).map_err(|_| CoordinatorError::SessionEnded { session: token.session })
}

/// Rounded up: a session never lives shorter than its TTL.
fn millis(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

/// Parameters with their types, so that a statement needs no preparation.
type Params<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

/// The statements, with the names of one schema.
#[derive(Debug)]
struct Statements {
    open: String,
    renew: String,
    update: String,
    close: String,
    revoke: String,
    acquire: String,
    release: String,
    end: String,
    raise: String,
    renewal_numbers: String,
    read: String,
}

impl Statements {
    fn new(schema: &str) -> Self {
        let sql = |text: &str| text.replace('@', &format!("{schema}."));
        Self {
            open: sql("SELECT @session_open($1, $2, $3, $4, $5)"),
            renew: sql("UPDATE @session s SET renewals = renewals + 1
                FROM unnest($1, $2) AS r (session, secret)
                WHERE s.session = r.session AND s.secret = r.secret AND NOT s.revoked RETURNING s.session, s.secret,
                (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"),
            update: sql("SELECT @session_update($1, $2, $3, $4)"),
            close: sql("SELECT @session_close($1, $2, $3)"),
            revoke: sql("UPDATE @session SET revoked = true WHERE session = $1 AND NOT revoked"),
            acquire: sql("SELECT @grant_acquire($1, $2, $3, $4)"),
            release: sql("SELECT @grant_release($1, $2, $3, $4)"),
            end: sql("SELECT @session_end($1, $2, $3)"),
            raise: sql("SELECT @members_raise($1, $2)"),
            // A read-only server must not cause a detection: no process could renew there.
            renewal_numbers: sql("SELECT NULL::uuid, revision, current_setting('transaction_read_only') FROM @members
                UNION ALL SELECT session, renewals, NULL FROM @session"),
            read: sql("SELECT NULL::uuid, revision, NULL::bigint, NULL::bytea, NULL::integer FROM @members
                UNION ALL SELECT session, renewals, ttl, role, NULL FROM @session
                UNION ALL SELECT session, NULL, NULL, NULL, lane FROM @lane_grant"),
        }
    }
}

/// Where sessions and grants are stored.
#[derive(Debug)]
struct Members {
    calls: Arc<Calls>,
    statements: Statements,
    /// The channel of changes.
    channel: String,
    told: Arc<ListenState>,
}

impl Members {
    async fn query(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, CoordinatorError> {
        self.calls.query(sql, params).await.map_err(|error| coordinator_error(error.into()))
    }

    /// Runs a statement that answers a boolean or no row.
    async fn flag(&self, sql: &str, params: Params<'_>) -> Result<Option<bool>, CoordinatorError> {
        match self.query(sql, params).await?.first() {
            Some(row) => column(row, 0).map_err(coordinator_error),
            None => Ok(None),
        }
    }
}

#[async_trait]
impl MembershipTable for Members {
    async fn read(&self) -> Result<MembershipSnapshot, CoordinatorError> {
        snapshot(&self.query(&self.statements.read, &[]).await?).map_err(coordinator_error)
    }

    async fn renewal_numbers(&self) -> Result<RenewalNumbers, CoordinatorError> {
        renewal_numbers(&self.query(&self.statements.renewal_numbers, &[]).await?).map_err(coordinator_error)
    }

    async fn renew(&self, tokens: &[SessionToken]) -> Result<RenewalOutcome, CoordinatorError> {
        let held: Vec<(Uuid, Option<Uuid>)> =
            tokens.iter().map(|token| (token.session.0, secret_of(token).ok())).collect();
        let (sessions, secrets): (Vec<Uuid>, Vec<Option<Uuid>>) = held.iter().copied().unzip();
        let params: Params<'_> = &[(&sessions, Type::UUID_ARRAY), (&secrets, Type::UUID_ARRAY)];
        let rows = self.query(&self.statements.renew, params).await?;
        let of_row = |row: &Row| Ok((column(row, 0)?, Some(column(row, 1)?)));
        let renewed: HashSet<(Uuid, Option<Uuid>)> =
            rows.iter().map(of_row).collect::<Result<_, _>>().map_err(coordinator_error)?;
        // The last row was made nearest to the answer.
        let wall = rows.last().map(|row| column(row, 2)).transpose().map_err(coordinator_error)?;
        let alive = held.iter().map(|token| renewed.contains(token)).collect();
        Ok(RenewalOutcome { alive, wall: wall.map(Timestamp::from_micros) })
    }

    async fn end(&self, overdue: &[Renewal]) -> Result<(), CoordinatorError> {
        let sessions: Vec<Uuid> = overdue.iter().map(|renewal| renewal.session.0).collect();
        let numbers: Vec<i64> = overdue.iter().map(|renewal| renewal.number.cast_signed()).collect();
        let params: Params<'_> =
            &[(&sessions, Type::UUID_ARRAY), (&numbers, Type::INT8_ARRAY), (&self.channel, Type::TEXT)];
        self.query(&self.statements.end, params).await?;
        Ok(())
    }

    async fn raise(&self, above: u64) -> Result<(), CoordinatorError> {
        let above = above.cast_signed();
        let params: Params<'_> = &[(&above, Type::INT8), (&self.channel, Type::TEXT)];
        self.query(&self.statements.raise, params).await?;
        Ok(())
    }

    fn listen(&self) -> Box<dyn ChangeNotices> {
        Box::new(NotificationListener::start(
            Arc::clone(&self.calls),
            self.channel.clone(),
            Arc::clone(&self.told),
        ))
    }
}

fn renewal_numbers(rows: &[Row]) -> Result<RenewalNumbers, StoreError> {
    let mut numbers = RenewalNumbers::default();
    for row in rows {
        match column::<Option<Uuid>>(row, 0)? {
            Some(session) => numbers.numbers.push((SessionId(session), number(row, 1)?)),
            None if column::<&str>(row, 2)? == "on" => {
                return Err(StoreError::unavailable("the server is read-only now"));
            }
            None => numbers.revision = number(row, 1)?,
        }
    }
    Ok(numbers)
}

fn snapshot(rows: &[Row]) -> Result<MembershipSnapshot, StoreError> {
    let (mut view, mut renewals) = (View::default(), Vec::new());
    for row in rows {
        let session = column::<Option<Uuid>>(row, 0)?.map(SessionId);
        match (session, column::<Option<i32>>(row, 4)?) {
            (None, _) => view.revision = number(row, 1)?,
            (Some(session), Some(lane)) => {
                let lane = u16::try_from(lane).map_err(unexpected)?;
                view.grants.insert(LaneId(lane), session);
            }
            (Some(session), None) => {
                let role = codec::decode(column(row, 3)?)?;
                view.members.insert(session, Member { session, role });
                let ttl = Duration::from_millis(number(row, 2)?);
                renewals.push(Renewal { session, number: number(row, 1)?, ttl });
            }
        }
    }
    Ok(MembershipSnapshot { view, renewals })
}

/// As a coordinator error: the coordinator has only the unavailable one.
fn coordinator_error(error: StoreError) -> CoordinatorError {
    let outcome = error.outcome();
    match error {
        StoreError::Unavailable { outcome, source } => CoordinatorError::Unavailable { outcome, source },
        other => CoordinatorError::Unavailable { outcome, source: other.into() },
    }
}

/// A few connections for single statements. A connection whose call was dropped is closed: its pending
/// statement would hold up the next one.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) database: Database,
    /// One permit for each connection that may be open.
    turns: Semaphore,
    idle: Mutex<Vec<Connection>>,
}

impl Calls {
    pub(crate) async fn query(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, CallError> {
        let turn = tokio::time::timeout(self.database.options.response_timeout, self.turns.acquire()).await;
        let _turn = turn.map_err(|_| CallError::NoneFree)?.map_err(|_| CallError::Closed)?;
        let idle = self.lock().pop();
        let connection = match idle.filter(|connection| !connection.client.is_closed()) {
            Some(connection) => connection,
            None => self.database.open_connection().await?,
        };
        let answer = self.database.in_time(connection.client.query_typed(sql, params)).await;
        if !answer.as_ref().is_err_and(CallError::is_fatal) {
            let mut idle = self.lock();
            if idle.len() < IDLE_MAX {
                idle.push(connection);
            }
        }
        answer
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
