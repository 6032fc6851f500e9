//! A coordinator whose calls run on the keeper.

use std::sync::Arc;

use async_trait::async_trait;
use tasklane_core::clock_watch::Reference;
use tasklane_core::id::{LaneId, SessionId};
use tasklane_core::member::Role;
use tasklane_ports::{
    Coordinator, CoordinatorCapabilities, CoordinatorError, OpenSession, SessionToken, View, Watch,
};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// A coordinator that was opened on the keeper: the keeper serves its connections, so that sessions are
/// renewed even if the rest of the process is busy.
#[derive(Clone, Debug)]
pub struct KeptCoordinator(Arc<dyn Coordinator>);

impl KeptCoordinator {
    /// Wraps a coordinator.
    pub fn new(coordinator: Arc<dyn Coordinator>) -> Self {
        Self(coordinator)
    }
}

#[async_trait]
impl Coordinator for KeptCoordinator {
    fn capabilities(&self) -> CoordinatorCapabilities {
        self.0.capabilities()
    }

    async fn open(&self, open: OpenSession) -> Result<SessionToken, CoordinatorError> {
        let coordinator = Arc::clone(&self.0);
        super::run(async move { coordinator.open(open).await }).await
    }

    async fn renew(&self, token: &SessionToken) -> Result<(), CoordinatorError> {
        let (coordinator, token) = (Arc::clone(&self.0), token.clone());
        super::run(async move { coordinator.renew(&token).await }).await
    }

    async fn update(&self, token: &SessionToken, role: Role) -> Result<(), CoordinatorError> {
        let (coordinator, token) = (Arc::clone(&self.0), token.clone());
        super::run(async move { coordinator.update(&token, role).await }).await
    }

    async fn close(&self, token: &SessionToken) -> Result<(), CoordinatorError> {
        let (coordinator, token) = (Arc::clone(&self.0), token.clone());
        super::run(async move { coordinator.close(&token).await }).await
    }

    async fn revoke(&self, session: SessionId) -> Result<(), CoordinatorError> {
        let coordinator = Arc::clone(&self.0);
        super::run(async move { coordinator.revoke(session).await }).await
    }

    async fn acquire(&self, token: &SessionToken, lane: LaneId) -> Result<bool, CoordinatorError> {
        let (coordinator, token) = (Arc::clone(&self.0), token.clone());
        super::run(async move { coordinator.acquire(&token, lane).await }).await
    }

    async fn release(&self, token: &SessionToken, lane: LaneId) -> Result<(), CoordinatorError> {
        let (coordinator, token) = (Arc::clone(&self.0), token.clone());
        super::run(async move { coordinator.release(&token, lane).await }).await
    }

    fn clock(&self) -> Option<Reference> {
        self.0.clock()
    }

    async fn watch(&self) -> Result<Box<dyn Watch>, CoordinatorError> {
        let coordinator = Arc::clone(&self.0);
        let mut watch = super::run(async move { coordinator.watch().await }).await?;
        let (views, taken) = mpsc::channel(1);
        let following = super::spawn(async move {
            // The next view is requested when there is room for it, so none is older than necessary.
            while let Ok(room) = views.reserve().await {
                let Some(view) = watch.next().await else { return };
                room.send(view);
            }
        });
        Ok(Box::new(KeptWatch { views: taken, _following: following }))
    }
}

#[derive(Debug)]
struct KeptWatch {
    views: mpsc::Receiver<View>,
    _following: AbortOnDropHandle<()>,
}

#[async_trait]
impl Watch for KeptWatch {
    async fn next(&mut self) -> Option<View> {
        self.views.recv().await
    }
}
