package global

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nusa-scheduler/nusa/global/place"
)

// metrics are the metrics of a global server. Counters and histograms count from the start of the
// process. Gauges are read from the present leadership term, and are absent while this server has
// none.
type metrics struct {
	commits  prometheus.Histogram
	writes   prometheus.Counter
	plans    prometheus.Histogram
	slots    *prometheus.CounterVec
	verdicts prometheus.Counter
	// forwarded and lost count entries of the regions' audit trails.
	forwarded, lost prometheus.Counter
	repairs         *prometheus.CounterVec
	active          *atomic.Pointer[leadershipTerm]
	isActive        *prometheus.Desc
	jobs            *prometheus.Desc
	pending         *prometheus.Desc
	regions         *prometheus.Desc
	queue           *prometheus.Desc
	paused          *prometheus.Desc
	alarms          *prometheus.Desc
	term            *prometheus.Desc
	// events describes the log of the durable events.
	eventBytes, eventNumber, eventsUnstored *prometheus.Desc
	room, deadLetters                       *prometheus.Desc
}

func newMetrics(current *atomic.Pointer[leadershipTerm]) *metrics {
	buckets := prometheus.ExponentialBuckets(0.0005, 2, 14) // 0.5 ms .. 4 s
	return &metrics{
		active: current,
		commits: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "nusa_global_commit_seconds", Help: "Duration of store transactions.", Buckets: buckets}),
		writes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nusa_global_commit_writes_total", Help: "Keys written to the store."}),
		plans: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "nusa_global_plan_seconds", Help: "Duration of placement decisions.", Buckets: buckets}),
		slots: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nusa_global_slot_actions_total", Help: "Slot actions applied, by kind."}, []string{"kind"}),
		verdicts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nusa_global_verdicts_total", Help: "Regions that were declared lost."}),
		repairs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nusa_reconcile_repairs_total", Help: "Differences that were repaired, by tier and kind. 0 in a healthy federation."}, []string{"tier", "kind"}),
		forwarded: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nusa_audit_forwarded_total", Help: "Entries of the regions' audit trails that were stored."}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nusa_audit_forward_lost_total", Help: "Entries that a region removed from its audit trail before they were stored here."}),
		paused:         prometheus.NewDesc("nusa_global_failover_paused", "1 while failover is paused because many regions fell silent together.", nil, nil),
		isActive:       prometheus.NewDesc("nusa_global_active", "1 on the active server.", nil, nil),
		jobs:           prometheus.NewDesc("nusa_global_jobs", "Stored jobs.", nil, nil),
		pending:        prometheus.NewDesc("nusa_global_jobs_pending", "Jobs that the placer has to plan.", nil, nil),
		regions:        prometheus.NewDesc("nusa_global_regions", "Regions, by connection.", []string{"connected"}, nil),
		queue:          prometheus.NewDesc("nusa_global_commit_queue", "Writes that wait for a transaction.", nil, nil),
		alarms:         prometheus.NewDesc("nusa_global_alarms", "Alarms that an operator has to act on; see nusa server list.", nil, nil),
		room:           prometheus.NewDesc("nusa_global_store_bytes", "Bytes of the store, by kind: its database on disk, the part in use, the quota, the jobs, the limit of jobs.", []string{"kind"}, nil),
		deadLetters:    prometheus.NewDesc("nusa_global_dead_letters", "Stored dead letters that nobody has redriven or dropped.", nil, nil),
		eventBytes:     prometheus.NewDesc("nusa_global_event_bytes", "Bytes that the stored events take.", nil, nil),
		eventNumber:    prometheus.NewDesc("nusa_global_event_number", "Number of the latest durable event.", nil, nil),
		eventsUnstored: prometheus.NewDesc("nusa_global_events_unstored", "Events of this leadership term that could not be stored; consumers learn of the gap.", nil, nil),
		term:           prometheus.NewDesc("nusa_global_leadership_term", "Number of the leadership term.", nil, nil),
	}
}

func (m *metrics) observeCommit(writes int, took time.Duration) {
	m.commits.Observe(took.Seconds())
	m.writes.Add(float64(writes))
}

func (m *metrics) observePlan(took time.Duration) { m.plans.Observe(took.Seconds()) }

func (m *metrics) observeActions(actions []place.Action) {
	for _, a := range actions {
		m.slots.WithLabelValues(string(a.Kind)).Inc()
	}
}

func (m *metrics) observeForwarded(n int64) { m.forwarded.Add(float64(n)) }

func (m *metrics) observeRepair(tier, kind string) { m.repairs.WithLabelValues(tier, kind).Inc() }

func (m *metrics) observeLost(n int64) { m.lost.Add(float64(n)) }

func (m *metrics) observeVerdicts(n int) { m.verdicts.Add(float64(n)) }

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range []prometheus.Collector{m.commits, m.writes, m.plans, m.slots, m.verdicts, m.forwarded, m.lost, m.repairs} {
		c.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{m.isActive, m.jobs, m.pending, m.regions, m.queue, m.paused, m.alarms, m.term, m.room, m.deadLetters, m.eventBytes, m.eventNumber, m.eventsUnstored} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range []prometheus.Collector{m.commits, m.writes, m.plans, m.slots, m.verdicts, m.forwarded, m.lost, m.repairs} {
		c.Collect(ch)
	}
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	term := m.active.Load()
	if term == nil {
		gauge(m.isActive, 0)
		return
	}
	gauge(m.alarms, len(term.state.Alarms()))
	use := term.state.Usage()
	for kind, bytes := range map[string]int64{
		"disk": use.GetBytes(), "used": use.GetUsedBytes(), "quota": use.GetQuotaBytes(), "jobs": use.GetJobBytes(), "jobs_limit": use.GetJobLimitBytes(),
	} {
		gauge(m.room, int(bytes), kind)
	}
	gauge(m.eventBytes, int(term.state.Events.Bytes()))
	gauge(m.eventNumber, int(term.state.Events.Last()))
	gauge(m.eventsUnstored, int(term.state.Events.Unstored()))
	term.state.Lock()
	defer term.state.Unlock()
	gauge(m.term, int(term.state.Sessions.Term.Number))
	connected := 0
	for _, r := range term.state.Regions {
		if r.Session != nil {
			connected++
		}
	}
	gauge(m.isActive, 1)
	gauge(m.deadLetters, term.letters.Open())
	gauge(m.jobs, len(term.state.Jobs))
	gauge(m.pending, len(term.state.Pending))
	gauge(m.regions, connected, "true")
	gauge(m.regions, len(term.state.Regions)-connected, "false")
	gauge(m.queue, term.commit.Waiting())
	paused := 0
	if term.state.FailoverPaused != "" {
		paused = 1
	}
	gauge(m.paused, paused)
}
