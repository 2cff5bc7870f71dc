package federation

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Result holds the figures. A figure without a value is not measured with these options.
type Result struct {
	Regions int `json:"regions"`
	Jobs    int `json:"jobs"`
	// DecidedPerS counts slots as regions receive them, AcceptedPerS slots whose
	// acceptance the regions know to be stored; both from the first submit to the last of
	// them.
	DecidedPerS  float64 `json:"decided_per_s"`
	AcceptedPerS float64 `json:"accepted_per_s"`
	// EtcdJobsPerS is what etcd alone stores: 64 clients, four keys a job, one job a
	// transaction; for submits by stream 31 jobs.
	EtcdJobsPerS *float64 `json:"etcd_jobs_per_s"`
	// SubmitToOfferedMS ends when regions have every slot of a job, SubmitToRunningMS when
	// a watch of a job, out of a sample, shows that all of it runs.
	SubmitToOfferedMS Pair `json:"submit_to_offered_ms"`
	SubmitToRunningMS Pair `json:"submit_to_running_ms"`
	// Of the server's process: CPU time and bytes for the disk from the first submit until
	// all is accepted, and the peak of its memory before the restart.
	ServerCPUUSPerJob  *float64 `json:"server_cpu_us_per_job"`
	ServerPeakRSSMB    *float64 `json:"server_peak_rss_mb"`
	BytesWrittenPerJob *float64 `json:"bytes_written_per_job"`
	// ConnectS is the time until all regions hold a lease, all beginning at once.
	ConnectS  float64 `json:"connect_s"`
	ConnectMB Traffic `json:"connect_mb"`
	Idle      *Idle   `json:"idle"`
	// RestartS is the time from the start of the process after a SIGKILL until a region
	// receives a slot of a job that was submitted then.
	RestartS *float64 `json:"restart_s"`

	// The rest is in the table only.
	Slots, Decided, Accepted, Watched int     `json:"-"`
	Seconds                           float64 `json:"-"`
	Concurrency                       int     `json:"-"`
	Stream                            bool    `json:"-"`
	Rate                              float64 `json:"-"`
	SubmitMS                          Pair    `json:"-"`
	Retries                           int     `json:"-"`
	// Ended counts the sessions that ended by themselves before the restart.
	Ended int `json:"-"`
	// ServingS is the part of RestartS until the server answered as the active one.
	ServingS       float64 `json:"-"`
	LoadCPUSeconds float64 `json:"-"`
	Filesystem     string  `json:"-"`
	// Incomplete: an error ended the measurement.
	Incomplete bool `json:"-"`
}

// Pair holds quantiles in milliseconds.
type Pair struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// Traffic holds megabytes from and to the global tier, over all regions.
type Traffic struct {
	Down float64 `json:"down"`
	Up   float64 `json:"up"`
}

// Idle holds what a time without submits costs: cores of the server, and bytes from and to
// the global tier for each region in five seconds.
type Idle struct {
	Cores     *float64 `json:"cores"`
	DownBytes float64  `json:"down_bytes"`
	UpBytes   float64  `json:"up_bytes"`
}

func (p Pair) String() string {
	return fmt.Sprintf("p50 %s, p99 %s", milliseconds(p.P50), milliseconds(p.P99))
}

func milliseconds(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f ms", v)
	}
	return fmt.Sprintf("%.3g ms", v)
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
	if r.Ended > 0 {
		row("sessions ended", "%d by the server", r.Ended)
	}
	if r.Idle != nil {
		cores := "not known"
		if r.Idle.Cores != nil {
			cores = fmt.Sprintf("%.3f cores", *r.Idle.Cores)
		}
		row("idle", "%s; a region in 5 s: %.0f bytes down, %.0f up", cores, r.Idle.DownBytes, r.Idle.UpBytes)
	}
	if r.RestartS != nil {
		row("restart", "serving after %.3f s, first decision after %.3f s", r.ServingS, *r.RestartS)
	}
	return t.Flush()
}
