package reserve

import (
	"time"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/job/config"
)

// record is the stored form of a run.
type record struct {
	// Started is when the run began, and Boot and Clock are the boot and the driver's clock at that time.
	Started time.Time     `json:"started"`
	Boot    string        `json:"boot"`
	Clock   time.Duration `json:"clock"`
	// TTL is the time after which the run completes. 0: never.
	TTL   time.Duration  `json:"ttl,omitempty"`
	Lease lease.Deadline `json:"lease,omitzero"`
	// End says how the run ended, if it was stopped or its end was noticed.
	End *end `json:"end,omitempty"`
}

// end says how a run ended.
type end struct {
	At       time.Time    `json:"at"`
	Cause    driver.Cause `json:"cause,omitempty"`
	ExitCode int          `json:"exit_code,omitempty"`
	Message  string       `json:"message,omitempty"`
}

// moment is a time on the clocks that count.
type moment struct {
	wall  time.Time
	clock time.Duration
	boot  string
}

// state returns how the run has ended, or nil while the run is up. next is when the result may change
// without a call, and 0 if it never does.
func (r *record) state(now moment) (ended *end, next time.Duration) {
	if r.End != nil {
		return r.End, 0
	}
	sameBoot := r.Boot == now.boot && now.clock >= r.Clock
	age := now.wall.Sub(r.Started) // after a boot only the wall clock knows how long ago the run began
	if sameBoot {
		age = now.clock - r.Clock
	}
	leased := r.Lease.At != 0
	switch {
	case r.TTL > 0 && age >= r.TTL:
		return &end{At: r.Started.Add(r.TTL)}, 0
	case leased && !sameBoot:
		return &end{At: now.wall, Cause: driver.CauseRebooted, ExitCode: -1, Message: "the host restarted, so its lease has ended"}, 0
	case leased && now.clock >= r.Lease.At:
		return &end{At: now.wall, Cause: driver.CauseLeaseExpired, ExitCode: 143, Message: "no renewal came before the lease ended"}, 0
	}
	if r.TTL > 0 {
		next = r.TTL - age
	}
	if leased && (next == 0 || r.Lease.At-now.clock < next) {
		next = r.Lease.At - now.clock
	}
	return nil, next
}

// status returns the run's status for a caller of the driver.
func (r *record) status(ended *end) driver.Status {
	st := driver.Status{State: driver.Running, Started: r.Started}
	if ended != nil {
		st.State, st.Finished, st.Cause, st.ExitCode, st.Message = driver.Ended, ended.At, ended.Cause, ended.ExitCode, ended.Message
	}
	return st
}

// ttl reads the configuration of a task.
func ttl(values map[string]any) (time.Duration, error) {
	v, err := config.Reserve.Read(values)
	if err != nil || !v.Has("ttl") {
		return 0, err
	}
	return time.ParseDuration(v.Text("ttl", ""))
}
