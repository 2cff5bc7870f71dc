package region

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/nusa-scheduler/nusa/bench/report"
)

// Result holds the figures of a measurement. Field names give the unit of times;
// memory is in MB of 10⁶ bytes.
type Result struct {
	Nodes int `json:"nodes"`
	Jobs  int `json:"jobs"`
	Count int `json:"count"`
	// Placed counts committed allocations, as a client sees them.
	Placed int `json:"placed"`
	// Incomplete: an error ended the measurement. The figures were measured before the
	// error.
	Incomplete bool `json:"incomplete,omitempty"`
	// Acknowledged counts the allocations whose running state the region has committed.
	Acknowledged int `json:"acknowledged"`
	// Seconds is the time from the first submit until a client saw the last placement.
	Seconds          float64          `json:"seconds"`
	PlacementsPerS   float64          `json:"placements_per_s"`
	SubmitToPlacedMS report.Quantiles `json:"submit_to_placed_ms"`
	// ServerPeakRSSMB is the peak memory of the server with the largest peak; nil with
	// --against.
	ServerPeakRSSMB *float64 `json:"server_peak_rss_mb"`
	// ServerCPUUSPerPlacement is the CPU time of all servers from the first submit until
	// all instances are acknowledged, divided by the placements; nil with --against.
	ServerCPUUSPerPlacement *float64 `json:"server_cpu_us_per_placement"`
	// EmptyCallsPerS is the rate at which the same callers make empty calls.
	EmptyCallsPerS float64 `json:"empty_calls_per_s"`
	// EmptyCallMS is the latency of empty calls at the rate of the jobs; nil without
	// --rate.
	EmptyCallMS *report.Quantiles `json:"empty_call_ms,omitempty"`
	FSync       bool              `json:"fsync"`

	// AcknowledgedSeconds is the time from the first submit until the last
	// acknowledgement.
	AcknowledgedSeconds float64          `json:"acknowledged_seconds"`
	AcknowledgedPerS    float64          `json:"acknowledged_per_s"`
	SubmitMS            report.Quantiles `json:"submit_ms"`
	// Retries counts how often a submit was refused, because a queue was full or no server
	// was active, and was sent again.
	Retries int `json:"retries"`
	// ServerCPUUSPerPlacementUntilPlaced is like ServerCPUUSPerPlacement, but ends with
	// the last placement: it leaves out the acknowledgements that follow.
	ServerCPUUSPerPlacementUntilPlaced *float64 `json:"server_cpu_us_per_placement_until_placed"`
	// LoadCPUSeconds is the CPU time of this process, which runs the callers and the
	// simulated agents, from the first submit until all instances are acknowledged.
	LoadCPUSeconds float64 `json:"load_cpu_seconds"`
	// AgentsConnectSeconds is the time until all simulated agents had registered.
	AgentsConnectSeconds float64 `json:"agents_connect_seconds"`

	Servers     int     `json:"servers"`
	Concurrency int     `json:"concurrency"`
	Connections int     `json:"connections"`
	Rate        float64 `json:"rate"`
	TLS         bool    `json:"tls,omitempty"`
	Stream      bool    `json:"stream"`
	NoAck       bool    `json:"no_ack"`
	Warmup      int     `json:"warmup"`

	Filesystem string            `json:"filesystem,omitempty"`
	DiskSyncMS *report.Quantiles `json:"disk_sync_ms,omitempty"`
	PerServer  []ServerFigures   `json:"per_server,omitempty"`
	// StatesEqual says whether all servers held the same state at index StatesIndex of the
	// log, after all instances were acknowledged; nil with one server.
	StatesEqual *bool           `json:"states_equal,omitempty"`
	StatesIndex uint64          `json:"states_index,omitempty"`
	Idle        *IdleFigures    `json:"idle,omitempty"`
	Restart     *RestartFigures `json:"restart,omitempty"`
}

// ServerFigures are the figures of one server.
type ServerFigures struct {
	Name   string `json:"name"`
	Master bool   `json:"master"`
	// PeakRSSMB is the peak since the server's start. CPUSeconds is the CPU time from the
	// first submit until all instances are acknowledged.
	PeakRSSMB  float64 `json:"peak_rss_mb"`
	CPUSeconds float64 `json:"cpu_seconds"`
}

// IdleFigures describe the servers while they get only heartbeats and statistics.
type IdleFigures struct {
	Seconds float64 `json:"seconds"`
	// CPUCores is the CPU time of all servers divided by Seconds.
	CPUCores float64 `json:"cpu_cores"`
}

// RestartFigures are times since the SIGKILL of the master, except PlacedAfterElectedMS.
type RestartFigures struct {
	ElectedMS float64 `json:"elected_ms"`
	// PlacedMS is the time until the placement of an instance that was submitted after
	// the election. PlacedAfterElectedMS is the part of that time after the election.
	PlacedMS             float64 `json:"placed_ms"`
	PlacedAfterElectedMS float64 `json:"placed_after_elected_ms"`
	// AgentsBackMS is the time until every agent had a session again.
	AgentsBackMS float64 `json:"agents_back_ms"`
}

// Table writes the figures as a table.
func (r *Result) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	how := fmt.Sprintf("%d callers", r.Concurrency)
	switch {
	case r.Stream:
		how = fmt.Sprintf("%d streams", r.Concurrency)
	case r.Rate > 0:
		how = fmt.Sprintf("%g a second", r.Rate)
	}
	where := "a running region"
	if r.Servers > 0 {
		where = serversText(r.Servers)
	}
	if r.TLS {
		where += ", TLS"
	}
	row("load", "%d jobs × %d on %d nodes, %s, %s", r.Jobs, r.Count, r.Nodes, how, where)
	placed := fmt.Sprint(r.Placed)
	if r.Incomplete {
		row("INCOMPLETE", "an error ended it, see below: figures are of what was reached until then")
		placed += fmt.Sprintf(" of %d", r.Jobs*r.Count)
	}
	row("placed", "%s in %.3f s: %.0f /s", placed, r.Seconds, r.PlacementsPerS)
	row("acknowledged", "%d in %.3f s: %.0f /s", r.Acknowledged, r.AcknowledgedSeconds, r.AcknowledgedPerS)
	row("submit to placed", "%s", r.SubmitToPlacedMS)
	row("submit to answer", "%s, %d retries", r.SubmitMS, r.Retries)
	row("empty calls", "%.0f /s", r.EmptyCallsPerS)
	if r.EmptyCallMS != nil {
		row("  at that rate", "%s", *r.EmptyCallMS)
	}
	if r.ServerCPUUSPerPlacement != nil {
		row("server CPU", "%.1f µs a placement (%.1f until placed)", *r.ServerCPUUSPerPlacement, *r.ServerCPUUSPerPlacementUntilPlaced)
		row("server memory", "%.0f MB at most", *r.ServerPeakRSSMB)
		row("load generator", "%.2f s of CPU", r.LoadCPUSeconds)
	}
	for _, s := range r.PerServer {
		master := ""
		if s.Master {
			master = ", master"
		}
		row("  "+s.Name, "%.0f MB, %.2f s of CPU%s", s.PeakRSSMB, s.CPUSeconds, master)
	}
	if r.DiskSyncMS != nil {
		row("disk", "%s, fsync %s", r.Filesystem, *r.DiskSyncMS)
	}
	if r.StatesEqual != nil {
		row("states", "%s at index %d of the log", map[bool]string{true: "equal", false: "NOT equal"}[*r.StatesEqual], r.StatesIndex)
	}
	if r.Idle != nil {
		row("idle", "%.3f cores during %.1f s", r.Idle.CPUCores, r.Idle.Seconds)
	}
	if r.Restart != nil {
		row("restart", "elected after %.0f ms, first placement after %.0f ms (%.0f ms after the election), all agents back after %.0f ms",
			r.Restart.ElectedMS, r.Restart.PlacedMS, r.Restart.PlacedAfterElectedMS, r.Restart.AgentsBackMS)
	}
	return t.Flush()
}

// serversText returns "1 server" or "N servers".
func serversText(n int) string {
	if n == 1 {
		return "1 server"
	}
	return fmt.Sprintf("%d servers", n)
}
