package wire

import "google.golang.org/protobuf/encoding/protowire"

// These are the numbers of the fields that this package reads and writes without the
// generated code. TestFieldsAreThoseOfTheMessages compares them with the .proto files. It
// fails when a message gets a field that this file does not list.

// Fields of AgentMessage, LeaseRequest and Position. Each KindX is a kind of AgentMessage.
// agentStats and agentOrdersAck may come with any kind.
const (
	KindHello        protowire.Number = 1
	KindLease        protowire.Number = 2
	agentOrdersAck   protowire.Number = 3
	KindReports      protowire.Number = 4
	agentStats       protowire.Number = 5
	KindInventory    protowire.Number = 6
	KindGoodbye      protowire.Number = 7
	leaseRequestID   protowire.Number = 1
	leaseRequestGot  protowire.Number = 2
	positionEpoch    protowire.Number = 1
	positionSequence protowire.Number = 2
)

// Fields of AllocReports, AllocReport and TaskState.
const (
	reportsFull     protowire.Number = 1
	reportsLast     protowire.Number = 2
	reportsReports  protowire.Number = 3
	reportsRemoved  protowire.Number = 4
	reportsPosition protowire.Number = 5

	reportID       protowire.Number = 1
	reportState    protowire.Number = 2
	reportDeclined protowire.Number = 3
	reportReason   protowire.Number = 4
	reportMessage  protowire.Number = 5
	reportTasks    protowire.Number = 6
	reportIndex    protowire.Number = 8
	reportFailure  protowire.Number = 9
	reportLimits   protowire.Number = 10
	reportOutput   protowire.Number = 11

	failureCategory  protowire.Number = 1
	failureTask      protowire.Number = 2
	failureExitCode  protowire.Number = 3
	failureSignal    protowire.Number = 4
	failurePermanent protowire.Number = 5

	taskState    protowire.Number = 1
	taskRestarts protowire.Number = 4
)

// Fields of NodeStats, DiskStats, NetworkStats and google.protobuf.Duration.
const (
	statsCPU             protowire.Number = 1
	statsMemoryUsed      protowire.Number = 3
	statsMemoryAvailable protowire.Number = 4
	statsDisks           protowire.Number = 6
	statsNetworks        protowire.Number = 7
	statsLoad1           protowire.Number = 8
	statsTasks           protowire.Number = 12
	statsAge             protowire.Number = 13

	diskUsed  protowire.Number = 2
	diskTotal protowire.Number = 3

	networkInPerSecond  protowire.Number = 7
	networkOutPerSecond protowire.Number = 8

	durationSeconds protowire.Number = 1
	durationNanos   protowire.Number = 2
)

// Fields of MasterMessage, AllocOrders and AllocOrder.
const (
	masterOrders protowire.Number = 5

	ordersFull     protowire.Number = 1
	ordersLast     protowire.Number = 2
	ordersOrders   protowire.Number = 3
	ordersRemoved  protowire.Number = 4
	ordersPosition protowire.Number = 5

	orderAllocation  protowire.Number = 1
	orderGroup       protowire.Number = 2
	orderIncarnation protowire.Number = 3
	orderIndex       protowire.Number = 4
	orderJobType     protowire.Number = 5
	orderBinding     protowire.Number = 6
	orderGPUs        protowire.Number = 7
	orderResized     protowire.Number = 8

	grantDevice protowire.Number = 1
	grantShare  protowire.Number = 2
)

// Fields of Allocation, as an order contains it, and of Resources.
const (
	allocID          protowire.Number = 1
	allocNamespace   protowire.Number = 2
	allocJob         protowire.Number = 3
	allocGroup       protowire.Number = 4
	allocIndex       protowire.Number = 5
	allocJobVersion  protowire.Number = 6
	allocRegion      protowire.Number = 7
	allocNodeID      protowire.Number = 8
	allocNodeName    protowire.Number = 9
	allocDesired     protowire.Number = 10
	allocReason      protowire.Number = 12
	allocMessage     protowire.Number = 13
	allocGeneration  protowire.Number = 14
	allocEpoch       protowire.Number = 15
	allocTasks       protowire.Number = 16
	allocOutput      protowire.Number = 29
	allocResources   protowire.Number = 17
	allocPorts       protowire.Number = 18
	allocAttempt     protowire.Number = 21
	allocIncarnation protowire.Number = 24

	resourcesCPUMilli    protowire.Number = 1
	resourcesMemoryBytes protowire.Number = 2
	resourcesDiskBytes   protowire.Number = 3
)

// specGroups and specLabels are fields of JobSpec, and groupServices is one of Group.
const (
	specGroups    protowire.Number = 6
	specLabels    protowire.Number = 8
	groupServices protowire.Number = 18
)

// Fields of a map entry. Protobuf encodes such an entry as a message.
const (
	entryKey   protowire.Number = 1
	entryValue protowire.Number = 2
)
