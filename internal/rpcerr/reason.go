package rpcerr

// Domain is the ErrorInfo.domain of Nusa's reasons.
const Domain = "nusa"

// Reason names the cause of an error for programs. It is sent as ErrorInfo.reason. A
// reason is never renamed, because other versions compare it.
type Reason string

// The reasons.
const (
	// ReasonNoLeader: no server leads, or the called server does not know the
	// leader yet. Retry.
	ReasonNoLeader Reason = "NO_LEADER"
	// ReasonLeaderUnreachable: the called server cannot connect to the leader it
	// knows. Metadata: KeyAddress. Retry.
	ReasonLeaderUnreachable Reason = "LEADER_UNREACHABLE"
	// ReasonNoMaster: the region has no master, or the called server does not
	// know it. Retry.
	ReasonNoMaster Reason = "NO_MASTER"
	// ReasonSessionEnded: the call was passed on to a lower tier through a session that
	// has ended. Metadata: KeyKind, KeyName. Retry.
	ReasonSessionEnded Reason = "SESSION_ENDED"
	// ReasonStoreFull: the store or its part for jobs is full. Purge jobs or raise a limit.
	// Metadata: KeyUsed, KeyLimit.
	ReasonStoreFull Reason = "STORE_FULL"
	// ReasonNotFound: the named object does not exist. Metadata: KeyKind, KeyName.
	ReasonNotFound Reason = "NOT_FOUND"
)

// Keys of Error.Metadata.
const (
	// KeyKind is the kind of the object that KeyName names: one of the constants Kind….
	KeyKind = "kind"
	// KeyName is the name or id of an object.
	KeyName = "name"
	// KeyUsed and KeyLimit are sizes in bytes.
	KeyUsed  = "used"
	KeyLimit = "limit"
	// KeyAddress is the "host:port" of a server.
	KeyAddress = "address"
)

// Values of KeyKind.
const (
	KindJob    = "job"
	KindAlloc  = "alloc"
	KindNode   = "node"
	KindRegion = "region"
)
