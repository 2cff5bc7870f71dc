package regional

import "github.com/nusa-scheduler/nusa/regional/raftlog"

// wireError returns err as a gRPC status; nil and statuses stay what they are.
func wireError(err error) error { return raftlog.StatusError(err) }

// errNoMaster is the status of calls while the region has no known master.
var errNoMaster = raftlog.ErrNoMaster
