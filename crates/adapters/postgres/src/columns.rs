//! Arrays as parameters: a batch goes to the server as one array for each column.
//!
//! Values are encoded directly into their wire form, so that a batch of a thousand tasks is a few buffers
//! instead of some thousand values.

use bytes::{BufMut, BytesMut};
use tokio_postgres::types::{IsNull, Kind, ToSql, Type, to_sql_checked};
use uuid::Uuid;

/// An array of values of one type.
#[derive(Debug)]
pub(crate) struct Column {
    element: Type,
    count: usize,
    /// The number of NULL values.
    nulls: usize,
    wire: Vec<u8>,
}

impl Column {
    fn new(element: Type) -> Self {
        Self { element, count: 0, nulls: 0, wire: Vec::new() }
    }

    pub(crate) fn uuids() -> Self {
        Self::new(Type::UUID)
    }

    pub(crate) fn smallints() -> Self {
        Self::new(Type::INT2)
    }

    pub(crate) fn integers() -> Self {
        Self::new(Type::INT4)
    }

    pub(crate) fn bigints() -> Self {
        Self::new(Type::INT8)
    }

    pub(crate) fn texts() -> Self {
        Self::new(Type::TEXT)
    }

    pub(crate) fn byteas() -> Self {
        Self::new(Type::BYTEA)
    }

    pub(crate) fn of_uuids(values: impl IntoIterator<Item = Uuid>) -> Self {
        let mut column = Self::uuids();
        values.into_iter().for_each(|value| column.uuid(value));
        column
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn uuid(&mut self, value: Uuid) {
        self.put(&Type::UUID, value.as_bytes());
    }

    pub(crate) fn maybe_uuid(&mut self, value: Option<Uuid>) {
        match value {
            Some(value) => self.uuid(value),
            None => self.null(),
        }
    }

    pub(crate) fn smallint(&mut self, value: i16) {
        self.put(&Type::INT2, &value.to_be_bytes());
    }

    pub(crate) fn integer(&mut self, value: i32) {
        self.put(&Type::INT4, &value.to_be_bytes());
    }

    pub(crate) fn bigint(&mut self, value: i64) {
        self.put(&Type::INT8, &value.to_be_bytes());
    }

    pub(crate) fn maybe_bigint(&mut self, value: Option<i64>) {
        match value {
            Some(value) => self.bigint(value),
            None => self.null(),
        }
    }

    pub(crate) fn text(&mut self, value: &str) {
        self.put(&Type::TEXT, value.as_bytes());
    }

    /// Without zeros, which no text of the server can hold.
    pub(crate) fn maybe_text(&mut self, value: Option<&str>) {
        match value {
            Some(value) if value.contains('\0') => self.text(&value.replace('\0', "\u{fffd}")),
            Some(value) => self.text(value),
            None => self.null(),
        }
    }

    pub(crate) fn maybe_integer(&mut self, value: Option<i32>) {
        match value {
            Some(value) => self.integer(value),
            None => self.null(),
        }
    }

    pub(crate) fn bytea(&mut self, value: &[u8]) {
        self.put(&Type::BYTEA, value);
    }

    pub(crate) fn maybe_bytea(&mut self, value: Option<&[u8]>) {
        match value {
            Some(value) => self.bytea(value),
            None => self.null(),
        }
    }

    fn null(&mut self) {
        self.wire.put_i32(-1);
        self.count += 1;
        self.nulls += 1;
    }

    fn put(&mut self, element: &Type, value: &[u8]) {
        debug_assert_eq!(self.element, *element);
        self.wire.put_i32(length(value.len()));
        self.wire.extend_from_slice(value);
        self.count += 1;
    }
}

fn length(length: usize) -> i32 {
    i32::try_from(length).expect("capabilities keep batches far below 2 GiB")
}

impl ToSql for Column {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match ty.kind() {
            Kind::Array(element) if *element == self.element => {}
            _ => return Err(format!("an array of {} for a parameter of type {ty}", self.element).into()),
        }
        // An array of NULLs alone is sent empty: `unnest` fills the shorter of several arrays up with NULL.
        let is_empty = self.count == self.nulls;
        out.put_i32(i32::from(!is_empty));
        out.put_i32(i32::from(self.nulls > 0));
        out.put_u32(self.element.oid());
        if !is_empty {
            out.put_i32(length(self.count));
            out.put_i32(1);
            out.extend_from_slice(&self.wire);
        }
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        matches!(ty.kind(), Kind::Array(_))
    }

    to_sql_checked!();
}
