package federation

import (
	"slices"

	"github.com/nusa-scheduler/nusa/bench/report"
)

// Figure is a figure that a global server and the bare parts both have.
type Figure struct {
	// Name is the figure's name in Result.Ratios. Title is its name for people.
	Name, Title string
	// Of returns the figure of a result, or false if the figure was not measured.
	Of func(*Result) (float64, bool)
}

// LoadFigures depend on the submitted jobs, and RestFigures on the regions. More is better
// in the figures whose names end in per_s, and less is better in the others.
var LoadFigures = []Figure{
	{"decided_per_s", "decided /s", func(r *Result) (float64, bool) { return r.DecidedPerS, true }},
	{"accepted_per_s", "accepted /s", func(r *Result) (float64, bool) { return r.AcceptedPerS, true }},
	{"submit_to_offered_ms_p50", "submit → offered p50 ms", func(r *Result) (float64, bool) { return r.SubmitToOfferedMS.P50, true }},
	{"submit_to_offered_ms_p99", "p99 ms", func(r *Result) (float64, bool) { return r.SubmitToOfferedMS.P99, true }},
	{"submit_to_running_ms_p50", "submit → running p50 ms", func(r *Result) (float64, bool) { return r.SubmitToRunningMS.P50, true }},
	{"submit_to_running_ms_p99", "p99 ms", func(r *Result) (float64, bool) { return r.SubmitToRunningMS.P99, true }},
	{"server_cpu_us_per_job", "CPU µs a job", func(r *Result) (float64, bool) { return known(r.ServerCPUUSPerJob) }},
	{"server_peak_rss_mb", "peak MB", func(r *Result) (float64, bool) { return known(r.ServerPeakRSSMB) }},
	{"bytes_written_per_job", "bytes written a job", func(r *Result) (float64, bool) { return known(r.BytesWrittenPerJob) }},
}

// RestFigures: see LoadFigures.
var RestFigures = []Figure{
	{"connect_s", "connected s", func(r *Result) (float64, bool) { return r.ConnectS, true }},
	{"connect_mb_down", "MB down", func(r *Result) (float64, bool) { return r.ConnectMB.Down, true }},
	{"connect_mb_up", "MB up", func(r *Result) (float64, bool) { return r.ConnectMB.Up, true }},
	{"connect_rss_mb", "MB of memory then", func(r *Result) (float64, bool) { return resident(r.ConnectMemory) }},
	{"idle_cores", "idle cores", idle(func(i *Idle) (float64, bool) { return known(i.Cores) })},
	{"idle_rss_mb", "idle MB", idle(func(i *Idle) (float64, bool) { return resident(i.Memory) })},
	{"idle_down_bytes", "idle bytes down", idle(func(i *Idle) (float64, bool) { return i.DownBytes, true })},
	{"idle_up_bytes", "idle bytes up", idle(func(i *Idle) (float64, bool) { return i.UpBytes, true })},
	{"restart_s", "restart s", func(r *Result) (float64, bool) { return known(r.RestartS) }},
}

func known(v *float64) (float64, bool) {
	if v == nil {
		return 0, false
	}
	return *v, true
}

func resident(m *Memory) (float64, bool) {
	if m == nil {
		return 0, false
	}
	return m.RSSMB, true
}

func idle(of func(*Idle) (float64, bool)) func(*Result) (float64, bool) {
	return func(r *Result) (float64, bool) {
		if r.Idle == nil {
			return 0, false
		}
		return of(r.Idle)
	}
}

// ratiosOf returns the figures of a server divided by those of the bare parts.
func ratiosOf(server, bare *Result) map[string]float64 {
	out := map[string]float64{}
	for _, f := range slices.Concat(LoadFigures, RestFigures) {
		own, has := f.Of(server)
		part, measured := f.Of(bare)
		if has && measured && part > 0 {
			out[f.Name] = report.Round(own/part, 3)
		}
	}
	return out
}
