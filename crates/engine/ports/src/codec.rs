//! How values are written to stores and buses: `MessagePack` with short field names, so that a field can be added
//! without a migration and an unknown one is passed over.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::StoreError;

/// A value as bytes.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    // As much as most values take.
    let mut bytes = Vec::with_capacity(256);
    rmp_serde::encode::write_named(&mut bytes, value).expect("values of these types can always be written");
    bytes
}

/// A value from bytes.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, StoreError> {
    rmp_serde::from_slice(bytes).map_err(StoreError::corrupt)
}
