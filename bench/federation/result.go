package federation

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// Result holds the figures. A nil figure was not measured with these options.
type Result struct {
	Regions int `json:"regions"`
	Jobs    int `json:"jobs"`
	// DecidedPerS is the rate of slots that regions received, from the first submit to the
	// last such slot. AcceptedPerS is the rate of slots that regions know as accepted in
	// the store, from the first submit to the last such slot.
	DecidedPerS  float64 `json:"decided_per_s"`
	AcceptedPerS float64 `json:"accepted_per_s"`
	// EtcdJobsPerS is how many jobs a second etcd alone stores, with 64 clients and four
	// keys a job. A transaction has one job, or 31 jobs if the measured jobs are submitted
	// by stream.
	EtcdJobsPerS *float64 `json:"etcd_jobs_per_s"`
	// SubmitToOfferedMS is the time until regions have received every slot of a job.
	// SubmitToRunningMS is the time until a watch of a job shows that all its instances
	// run; a sample of the jobs is watched.
	SubmitToOfferedMS Pair `json:"submit_to_offered_ms"`
	SubmitToRunningMS Pair `json:"submit_to_running_ms"`
	// The following are figures of the server's process. ServerCPUUSPerJob and
	// BytesWrittenPerJob are its CPU time and the bytes written to disk from the first
	// submit until all slots are accepted. ServerPeakRSSMB is its peak memory before the
	// restart.
	ServerCPUUSPerJob  *float64 `json:"server_cpu_us_per_job"`
	ServerPeakRSSMB    *float64 `json:"server_peak_rss_mb"`
	BytesWrittenPerJob *float64 `json:"bytes_written_per_job"`
	// ConnectS is the time until all regions hold a lease, when all connect at once.
	ConnectS  float64 `json:"connect_s"`
	ConnectMB Traffic `json:"connect_mb"`
	// ConnectMemory is the server's memory after ConnectS has passed and before any job
	// is submitted.
	ConnectMemory *Memory `json:"connect_memory,omitempty"`
	Idle          *Idle   `json:"idle"`
	Stored        *Stored `json:"stored,omitempty"`
	// RestartS is the time from starting the killed server again until a region receives
	// the slot of a new job.
	RestartS *float64 `json:"restart_s"`
	// ServingS is the part of RestartS until the server responds as the active server.
	ServingS float64 `json:"serving_s,omitempty"`
	// RestartParts has the parts of ServingS that are etcd's own; nil without Options.Etcd.
	RestartParts *RestartParts `json:"restart_parts_s,omitempty"`
	// RestartMemory is the memory of the restarted server after its first decision.
	RestartMemory *Memory  `json:"restart_memory,omitempty"`
	History       *History `json:"history,omitempty"`
	// Parts has the same figures of the bare parts. Ratios has the figures divided by those of
	// the bare parts, by the names of LoadFigures and RestFigures.
	Parts  *Result            `json:"parts,omitempty"`
	Ratios map[string]float64 `json:"ratios,omitempty"`
	// Rounds is how many rounds the figures are the medians of; 0 for one round. RatiosOfRounds has the
	// ratios of each round.
	Rounds         int                  `json:"rounds,omitempty"`
	RatiosOfRounds map[string][]float64 `json:"ratios_of_rounds,omitempty"`

	// The following figures are in the table only, not in the JSON.
	Slots, Decided, Accepted, Watched int     `json:"-"`
	Seconds                           float64 `json:"-"`
	Concurrency                       int     `json:"-"`
	Stream                            bool    `json:"-"`
	Rate                              float64 `json:"-"`
	SubmitMS                          Pair    `json:"-"`
	Retries                           int     `json:"-"`
	// Ended counts the sessions that the server ended before the restart.
	Ended          int     `json:"-"`
	LoadCPUSeconds float64 `json:"-"`
	Filesystem     string  `json:"-"`
	// Incomplete: an error ended the measurement.
	Incomplete bool `json:"-"`
}

// Pair holds two quantiles of a latency in milliseconds.
type Pair struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// Traffic holds the MB (10⁶ bytes) that all regions together received from the global tier
// and sent to it.
type Traffic struct {
	Down float64 `json:"down"`
	Up   float64 `json:"up"`
}

// Memory holds the memory of the server's process at one moment, in MB. OwnMB is the part
// that no file backs. The rest is the program, and what the process has read of the store's
// file: the kernel takes these pages when another program needs them.
type Memory struct {
	RSSMB float64 `json:"rss_mb"`
	OwnMB float64 `json:"own_mb"`
}

func (m Memory) String() string {
	return fmt.Sprintf("%.0f MB, of these %.0f its own", m.RSSMB, m.OwnMB)
}

// Idle holds the costs while no jobs are submitted: the CPU use and memory of the server,
// and the bytes that each region receives and sends in five seconds.
type Idle struct {
	Cores     *float64 `json:"cores"`
	DownBytes float64  `json:"down_bytes"`
	UpBytes   float64  `json:"up_bytes"`
	Memory    *Memory  `json:"memory,omitempty"`
}

func (p Pair) String() string {
	return fmt.Sprintf("p50 %s, p99 %s", milliseconds(p.P50), milliseconds(p.P99))
}

func milliseconds(v float64) string { return amount(v) + " ms" }

func amount(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// Table prints the figures for people, in at most 80 columns.
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
	row("load", "%d jobs, %d slots, %d regions, %s", r.Jobs, r.Slots, r.Regions, how)
	if r.Rounds > 0 {
		row("rounds", "%d: the figures are the medians", r.Rounds)
	}
	if r.Incomplete {
		row("INCOMPLETE", "an error ended it: figures are of what was reached")
	}
	row("slots decided", "%d in %.3f s: %.0f /s", r.Decided, r.Seconds, r.DecidedPerS)
	row("slots accepted", "%d: %.0f /s", r.Accepted, r.AcceptedPerS)
	row("submit to answer", "%s, %d retries", r.SubmitMS, r.Retries)
	row("submit to offered", "%s", r.SubmitToOfferedMS)
	row("submit to running", "%s, of %d watched jobs", r.SubmitToRunningMS, r.Watched)
	if r.EtcdJobsPerS != nil {
		row("etcd alone", "%.0f jobs/s, on %s", *r.EtcdJobsPerS, r.Filesystem)
	}
	if r.ServerCPUUSPerJob != nil {
		row("server CPU", "%.0f µs a job; of the load %.2f s", *r.ServerCPUUSPerJob, r.LoadCPUSeconds)
	}
	if r.ServerPeakRSSMB != nil {
		row("server memory", "%.0f MB at most", *r.ServerPeakRSSMB)
	}
	if r.BytesWrittenPerJob != nil {
		row("server writes", "%.0f bytes a job", *r.BytesWrittenPerJob)
	}
	row("connect", "%.3f s; %.3g MB down, %.3g MB up", r.ConnectS, r.ConnectMB.Down, r.ConnectMB.Up)
	if r.ConnectMemory != nil {
		row("  memory then", "%s", r.ConnectMemory)
	}
	if r.Ended > 0 {
		row("sessions ended", "%d by the server", r.Ended)
	}
	if r.Idle != nil {
		cores := "not known"
		if r.Idle.Cores != nil {
			cores = fmt.Sprintf("%.3f cores", *r.Idle.Cores)
		}
		row("idle", "%s; a region in 5 s: %.0f bytes down, %.0f up", cores, r.Idle.DownBytes, r.Idle.UpBytes)
		if r.Idle.Memory != nil {
			row("  memory then", "%s", r.Idle.Memory)
		}
	}
	r.Stored.rows(row, r.Parts)
	if r.RestartS != nil {
		row("restart", "serving after %.3f s, first decision after %.3f s", r.ServingS, *r.RestartS)
	}
	if r.RestartMemory != nil {
		row("  memory then", "%s", r.RestartMemory)
	}
	if p := r.RestartParts; p != nil {
		row("  etcd alone", "opened after %.3f s, %d keys read after %.3f s", p.EtcdOpen, p.Keys, p.EtcdOpen+p.EtcdRead)
	}
	if h := r.History; h != nil {
		row("with a history", "%d jobs; %s", h.Jobs, h.Memory)
		row("page of a list", "%s", h.PageMS)
	}
	if err := t.Flush(); err != nil || len(r.Ratios) == 0 {
		return err
	}
	return r.partsTable(w)
}

// partsTable prints the figures beside those of the bare parts.
func (r *Result) partsTable(w io.Writer) error {
	how := "the ratio"
	if r.Rounds > 0 {
		how = "the median ratio of the rounds, and the range"
	}
	fmt.Fprintf(w, "\nNusa / bare parts; %s\n", how)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range slices.Concat(LoadFigures, RestFigures) {
		if ratio, known := r.Ratios[f.Name]; known {
			own, _ := f.Of(r)
			bare, _ := f.Of(r.Parts)
			fmt.Fprintf(t, "  %s\t%s / %s\t%.2f%s\n", f.Name, amount(own), amount(bare), ratio, r.RangeText(f.Name))
		}
	}
	return t.Flush()
}
