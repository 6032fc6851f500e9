//! Small values: times, durations, states, JSON as it came.

use std::time::Duration;

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use tasklane_core::status::Status;
use tasklane_core::time::Timestamp;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, Schema, SchemaFormat, SchemaType, Type};
use utoipa::{PartialSchema, ToSchema};

/// A point in time, as RFC 3339 writes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time(pub(crate) Timestamp);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // What lies outside the years that can be written is as far away as can be written.
        let limit = if self.0 < Timestamp::ZERO { jiff::Timestamp::MIN } else { jiff::Timestamp::MAX };
        let time = jiff::Timestamp::from_microsecond(self.0.as_micros()).unwrap_or(limit);
        serializer.collect_str(&format_args!("{time:.6}"))
    }
}

impl PartialSchema for Time {
    fn schema() -> RefOr<Schema> {
        let schema = ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
            .description(Some("A point in time (RFC 3339, UTC)."));
        schema.into()
    }
}

impl ToSchema for Time {}

/// A duration in seconds: a whole number where it can be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seconds(pub(crate) Duration);

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.subsec_nanos() == 0 {
            serializer.serialize_u64(self.0.as_secs())
        } else {
            serializer.serialize_f64(self.0.as_secs_f64())
        }
    }
}

impl PartialSchema for Seconds {
    fn schema() -> RefOr<Schema> {
        let format = SchemaFormat::KnownFormat(KnownFormat::Double);
        let schema = ObjectBuilder::new().schema_type(Type::Number).format(Some(format)).minimum(Some(0));
        schema.description(Some("A duration in seconds.")).into()
    }
}

impl ToSchema for Seconds {}

/// Where a task is in its life.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatusName(pub(crate) Status);

impl Serialize for StatusName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.as_str())
    }
}

impl PartialSchema for StatusName {
    fn schema() -> RefOr<Schema> {
        let names = Status::ALL.map(Status::as_str);
        let schema = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names));
        schema.description(Some("The status of a task. The last three are final.")).into()
    }
}

impl ToSchema for StatusName {
    fn name() -> std::borrow::Cow<'static, str> {
        "Status".into()
    }
}

/// Any JSON value, given out as it came in.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct AnyJson(Box<RawValue>);

impl AnyJson {
    /// JSON text as it is; as a string, should it not be JSON after all.
    pub(crate) fn from_json(text: &str) -> Self {
        RawValue::from_string(text.to_owned()).map_or_else(|_| Self::from_text(text), Self)
    }

    pub(crate) fn from_text(text: &str) -> Self {
        let json = serde_json::to_string(text).expect("a text is always JSON");
        Self(RawValue::from_string(json).expect("just written"))
    }
}

impl PartialSchema for AnyJson {
    fn schema() -> RefOr<Schema> {
        let schema = ObjectBuilder::new().schema_type(SchemaType::AnyValue);
        schema.description(Some("Any JSON value.")).into()
    }
}

impl ToSchema for AnyJson {
    fn name() -> std::borrow::Cow<'static, str> {
        "Any".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(value: impl Serialize) -> String {
        serde_json::to_string(&value).unwrap()
    }

    #[test]
    fn times_are_written_in_utc() {
        assert_eq!(
            json(Time(Timestamp::from_micros(1_800_000_000_000_001))),
            "\"2027-01-15T08:00:00.000001Z\""
        );
        assert_eq!(json(Time(Timestamp::MAX)), "\"9999-12-30T22:00:00.999999Z\"");
    }

    #[test]
    fn durations_are_whole_seconds_where_they_can_be() {
        assert_eq!(json(Seconds(Duration::from_mins(1))), "60");
        assert_eq!(json(Seconds(Duration::from_millis(1500))), "1.5");
    }

    #[test]
    fn json_is_given_out_as_it_came() {
        assert_eq!(json(AnyJson::from_json("{\"b\": 1.0,\"a\":2}")), "{\"b\": 1.0,\"a\":2}");
        assert_eq!(json(AnyJson::from_json("not json")), "\"not json\"");
    }
}
