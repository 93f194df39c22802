//! A connection of a Kafka client: frames in, frames out, one request after the other.

use bytes::{Buf as _, Bytes, BytesMut};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::api_versions_response::ApiVersion;
use kafka_protocol::messages::{ApiKey, ApiVersionsResponse, RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::records::BrokerError;
use super::state::Broker;

/// Bytes of the largest request.
const REQUEST_BYTES_MAX: usize = 32 << 20;

/// The requests that the broker answers, and the versions that it speaks. Later versions of Fetch
/// and Produce name topics by ids only; later ones of OffsetCommit and OffsetFetch belong to the
/// next group protocol.
const SPOKEN: [(ApiKey, i16, i16); 19] = [
    (ApiKey::Produce, 3, 11),
    (ApiKey::Fetch, 4, 12),
    (ApiKey::ListOffsets, 1, 7),
    (ApiKey::Metadata, 0, 12),
    (ApiKey::OffsetCommit, 2, 8),
    (ApiKey::OffsetFetch, 1, 8),
    (ApiKey::FindCoordinator, 0, 4),
    (ApiKey::JoinGroup, 0, 9),
    (ApiKey::Heartbeat, 0, 4),
    (ApiKey::LeaveGroup, 0, 5),
    (ApiKey::SyncGroup, 0, 5),
    (ApiKey::ApiVersions, 0, 3),
    (ApiKey::CreateTopics, 2, 7),
    (ApiKey::DeleteTopics, 1, 5),
    (ApiKey::InitProducerId, 0, 4),
    (ApiKey::OffsetForLeaderEpoch, 2, 4),
    (ApiKey::DescribeConfigs, 1, 4),
    (ApiKey::DescribeCluster, 0, 1),
    (ApiKey::ListGroups, 0, 4),
];

/// Answers the requests of a client until it closes the connection.
///
/// # Errors
/// When the client speaks something else, or the connection breaks.
pub(super) async fn serve(broker: Broker, mut stream: TcpStream) -> Result<(), BrokerError> {
    stream.set_nodelay(true)?;
    loop {
        let size = match stream.read_u32().await {
            Ok(size) => usize::try_from(size)?,
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if !(8..=REQUEST_BYTES_MAX).contains(&size) {
            return Err(format!("a request of {size} bytes").into());
        }
        let mut frame = BytesMut::zeroed(size);
        stream.read_exact(&mut frame).await?;
        if let Some(answer) = Box::pin(answer(&broker, frame.freeze())).await? {
            stream.write_all(&answer).await?;
        }
    }
}

/// Returns the frame of the answer. A produce without acknowledgement has none.
async fn answer(broker: &Broker, mut frame: Bytes) -> Result<Option<Bytes>, BrokerError> {
    let (key, version) = ((&frame[..2]).get_i16(), (&frame[2..4]).get_i16());
    let asked = ApiKey::try_from(key).ok();
    let spoken = SPOKEN.iter().find(|(spoken, ..)| Some(*spoken) == asked);
    let Some((key, _, _)) = spoken.filter(|(_, from, to)| (*from..=*to).contains(&version)) else {
        if asked == Some(ApiKey::ApiVersions) {
            // Clients begin with their newest version, and read this answer in any version.
            let id = (&frame[4..8]).get_i32();
            let versions = versions().with_error_code(ResponseError::UnsupportedVersion.code());
            return written(id, 0, &versions).map(Some);
        }
        return Err(format!("request {key} version {version} is not spoken here").into());
    };
    let header = RequestHeader::decode(&mut frame, key.request_header_version(version))?;
    let call = Call { id: header.correlation_id, version, body: frame };
    match key {
        ApiKey::Produce => broker.produce(call),
        ApiKey::Fetch => broker.fetch(call).await.map(Some),
        ApiKey::ListOffsets => broker.list_offsets(call).map(Some),
        ApiKey::Metadata => broker.metadata(call).map(Some),
        ApiKey::OffsetForLeaderEpoch => broker.end_of_epoch(call).map(Some),
        ApiKey::InitProducerId => broker.init_producer(call).map(Some),
        ApiKey::CreateTopics => broker.create_topics(call).map(Some),
        ApiKey::DeleteTopics => broker.delete_topics(call).map(Some),
        ApiKey::DescribeConfigs => broker.describe_configs(call).map(Some),
        ApiKey::DescribeCluster => broker.describe_cluster(call).map(Some),
        ApiKey::FindCoordinator => broker.find_coordinator(call).map(Some),
        ApiKey::JoinGroup => broker.join_group(call).await.map(Some),
        ApiKey::SyncGroup => broker.sync_group(call).await.map(Some),
        ApiKey::Heartbeat => broker.heartbeat(call).map(Some),
        ApiKey::LeaveGroup => broker.leave_group(call).map(Some),
        ApiKey::OffsetCommit => broker.commit_offsets(call).map(Some),
        ApiKey::OffsetFetch => broker.fetch_offsets(call).map(Some),
        ApiKey::ListGroups => broker.list_groups(call).map(Some),
        _ => written(call.id, version, &versions()).map(Some),
    }
}

/// A request of a known version.
#[derive(Debug)]
pub(super) struct Call {
    id: i32,
    pub version: i16,
    body: Bytes,
}

impl Call {
    /// Reads the body.
    pub fn read<T: Decodable>(&mut self) -> Result<T, BrokerError> {
        Ok(T::decode(&mut self.body, self.version)?)
    }

    /// Writes the answer as a frame.
    pub fn answer<T: Encodable + HeaderVersion>(&self, body: &T) -> Result<Bytes, BrokerError> {
        written(self.id, self.version, body)
    }
}

fn written<T: Encodable + HeaderVersion>(
    id: i32,
    version: i16,
    body: &T,
) -> Result<Bytes, BrokerError> {
    let mut frame = BytesMut::zeroed(4);
    let header = ResponseHeader::default().with_correlation_id(id);
    header.encode(&mut frame, T::header_version(version))?;
    body.encode(&mut frame, version)?;
    let size = u32::try_from(frame.len() - 4)?;
    frame[..4].copy_from_slice(&size.to_be_bytes());
    Ok(frame.freeze())
}

fn versions() -> ApiVersionsResponse {
    let spoken = SPOKEN.iter().map(|(key, from, to)| {
        let version = ApiVersion::default().with_api_key(number_of(*key));
        version.with_min_version(*from).with_max_version(*to)
    });
    ApiVersionsResponse::default().with_api_keys(spoken.collect())
}

/// Returns the number of a request, which the library only converts in the other direction.
fn number_of(key: ApiKey) -> i16 {
    (0..=i16::from(i8::MAX))
        .find(|number| ApiKey::try_from(*number).ok() == Some(key))
        .unwrap_or_default()
}
