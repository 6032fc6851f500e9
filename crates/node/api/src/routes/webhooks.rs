//! Webhooks: their deliveries, secrets and endpoints.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use tasklane_core::status::Status;
use tasklane_ports::{TaskFilter, TaskList};
use tasklane_runtime::request::check_url;

use crate::extract::{JsonBody, Namespace, NoBody, NoParams};
use crate::model::{
    Delivery, DeliveryPage, EndpointPage, EndpointRequest, StatusName, TestRequest, TestStarted,
    WebhookEndpoint, WebhookSecret, parse_status,
};
use crate::params::Params;
use crate::problem::Problem;
use crate::routes::created::CreatedResponse;
use crate::routes::tasks::{cursor_text, parse_cursor};
use crate::state::Api;

/// List deliveries of webhooks
///
/// Newest first. A page may be short, even empty, and still have a cursor.
#[utoipa::path(
    get, path = "/api/v1/webhooks/deliveries", operation_id = "listDeliveries", tag = "webhooks",
    params(
        ("status" = Option<Vec<StatusName>>, Query, description = "One or several states.", explode = false, style = Form, min_items = 1),
        ("task" = Option<String>, Query, description = "Only deliveries for this task.", format = "uuid"),
        ("limit" = Option<u32>, Query, description = "The maximum of entries; defaults to 50.", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous page.", pattern = "^[0-9a-f]{48}$"),
    ),
    responses((status = 200, description = "A page of deliveries.", body = DeliveryPage))
)]
pub(crate) async fn deliveries(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    mut params: Params,
) -> Result<Json<DeliveryPage>, Problem> {
    let statuses: Result<Vec<Status>, Problem> = params
        .take_list("status")
        .iter()
        .map(|text| parse_status(text).map_err(|rule| Problem::parameter("status", rule)))
        .collect();
    let filter = TaskFilter {
        namespace: Some(namespace),
        statuses: statuses?,
        parent: params.id("task")?,
        ..TaskFilter::default()
    };
    let limit = params.limit(50)?;
    let cursor = params.take("cursor")?;
    let wrong_cursor = || Problem::parameter("cursor", "must be a cursor of an earlier answer");
    let after = cursor.map(|text| parse_cursor(&text).ok_or_else(wrong_cursor)).transpose()?;
    params.finish()?;
    let (deliveries, page) = api.node.deliveries(TaskList { filter, after, limit }).await?;
    let deliveries = deliveries.into_iter().map(Delivery::from).collect();
    Ok(Json(DeliveryPage { deliveries, cursor: page.next.map(cursor_text) }))
}

/// Read the secret of webhooks
///
/// The secret that signs deliveries of the namespace, by Standard Webhooks. Created at its first use.
#[utoipa::path(
    get, path = "/api/v1/webhooks/secret", operation_id = "getWebhookSecret", tag = "webhooks",
    responses((status = 200, description = "The secret.", body = WebhookSecret))
)]
pub(crate) async fn secret(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    _: NoParams,
) -> Result<Json<WebhookSecret>, Problem> {
    Ok(Json(api.node.webhook_secrets(&namespace).await?.into()))
}

/// Replace the secret of webhooks
///
/// For a day, both sign deliveries.
#[utoipa::path(
    post, path = "/api/v1/webhooks/secret/rotate", operation_id = "rotateWebhookSecret", tag = "webhooks",
    responses((status = 200, description = "The new and the previous secret.", body = WebhookSecret))
)]
pub(crate) async fn rotate(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    _: NoParams,
    _: NoBody,
) -> Result<Json<WebhookSecret>, Problem> {
    Ok(Json(api.node.rotate_webhook_secret(&namespace).await?.into()))
}

/// List endpoints with a secret of their own
///
/// The secrets are not shown. The order is arbitrary, and the same from page to page.
#[utoipa::path(
    get, path = "/api/v1/webhooks/endpoints", operation_id = "listWebhookEndpoints", tag = "webhooks",
    params(
        ("limit" = Option<u32>, Query, description = "The maximum of entries; defaults to 100.", minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous page.", pattern = "^[A-Za-z0-9._:@-]{1,128}$"),
    ),
    responses((status = 200, description = "A page of endpoints.", body = EndpointPage))
)]
pub(crate) async fn endpoints(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    mut params: Params,
) -> Result<Json<EndpointPage>, Problem> {
    let (limit, after) = (params.limit(100)?, params.name("cursor")?);
    params.finish()?;
    let (found, next) = api.node.webhook_endpoints(&namespace, after, limit).await?;
    let endpoints = found.into_iter().map(WebhookEndpoint::from).collect();
    Ok(Json(EndpointPage { endpoints, cursor: next.map(|next| next.to_string()) }))
}

/// Create or replace the secret of an endpoint
///
/// This secret signs deliveries to its address instead of that of the namespace; for a day the endpoint's previous
/// secret signs too. Only this answer has the secret.
#[utoipa::path(
    post, path = "/api/v1/webhooks/endpoints", operation_id = "rotateWebhookEndpoint", tag = "webhooks",
    responses(
        (status = 200, description = "The secret was replaced.", body = WebhookEndpoint),
        (status = 201, description = "The endpoint has its first secret.", body = WebhookEndpoint),
    )
)]
pub(crate) async fn rotate_endpoint(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    _: NoParams,
    body: JsonBody,
) -> Result<CreatedResponse<WebhookEndpoint>, Problem> {
    let EndpointRequest { url } = body.read(&api).await?;
    let (endpoint, secret, is_new) = api.node.rotate_endpoint_secret(&namespace, &url).await?;
    let endpoint = WebhookEndpoint { secret: Some(secret), ..endpoint.into() };
    // An endpoint is named by its address and has no path of its own.
    Ok(CreatedResponse::new(is_new, "/api/v1/webhooks/endpoints".to_owned(), endpoint))
}

/// Remove the secret of an endpoint
///
/// The secret of the namespace then signs deliveries to its address. Removing a missing secret is no error.
#[utoipa::path(
    delete, path = "/api/v1/webhooks/endpoints", operation_id = "deleteWebhookEndpoint", tag = "webhooks",
    params(("url" = String, Query, description = "The address.", example = "https://example.com/hook", max_length = 2048, pattern = r"^https?://[^\s\u0000-\u001F\u007F-\u009F]+$")),
    responses((status = 204, description = "The endpoint has no secret of its own."))
)]
pub(crate) async fn delete_endpoint(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    mut params: Params,
    _: NoBody,
) -> Result<StatusCode, Problem> {
    let url = params.take("url")?.ok_or_else(|| Problem::parameter("url", "must be given"))?;
    params.finish()?;
    check_url("url", &url).map_err(|error| Problem::parameter("url", error.message))?;
    api.node.delete_endpoint_secret(&namespace, &url).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Send a test message
///
/// Shows whether a receiver accepts messages and their signature.
#[utoipa::path(
    post, path = "/api/v1/webhooks/test", operation_id = "testWebhook", tag = "webhooks",
    responses((status = 202, description = "The message is on its way.", body = TestStarted))
)]
pub(crate) async fn test(
    State(api): State<Api>,
    Namespace(namespace): Namespace,
    _: NoParams,
    body: JsonBody,
) -> Result<(StatusCode, Json<TestStarted>), Problem> {
    let TestRequest { url } = body.read(&api).await?;
    let delivery = api.node.test_webhook(&namespace, &url).await?;
    Ok((StatusCode::ACCEPTED, Json(TestStarted { delivery_id: delivery.to_string() })))
}
