package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nusa-scheduler/nusa/agent/reconcile"
)

// metrics are what an agent counts, for /metrics.
type metrics struct {
	actions   *prometheus.CounterVec
	allocs    *prometheus.GaugeVec
	tasks     prometheus.Gauge
	connected prometheus.Gauge
	stale     prometheus.Counter
	sessions  prometheus.Counter
	checks    *prometheus.CounterVec
	queued    prometheus.Gauge
}

func newMetrics() *metrics {
	return &metrics{
		actions:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "nusa_agent_actions_total", Help: "What was done to bring actual to desired, by kind."}, []string{"kind"}),
		allocs:    prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "nusa_agent_allocations", Help: "Allocations on this node, by state."}, []string{"state"}),
		tasks:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "nusa_agent_tasks", Help: "Tasks that run."}),
		connected: prometheus.NewGauge(prometheus.GaugeOpts{Name: "nusa_agent_connected", Help: "1 with a session with the region's master."}),
		stale:     prometheus.NewCounter(prometheus.CounterOpts{Name: "nusa_agent_stale_orders_total", Help: "Orders refused because a newer one is held."}),
		sessions:  prometheus.NewCounter(prometheus.CounterOpts{Name: "nusa_agent_sessions_total", Help: "Sessions begun with a master."}),
		checks:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "nusa_agent_checks_total", Help: "Checks of tasks, by result: passed, failed, or missed by the agent."}, []string{"result"}),
		queued:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "nusa_agent_checks_queued", Help: "Checks that are due and wait for others to end."}),
	}
}

func (m *metrics) register(r *prometheus.Registry) {
	r.MustRegister(m.actions, m.allocs, m.tasks, m.connected, m.stale, m.sessions, m.checks, m.queued)
}

// count sets the gauges of what is here.
func (m *metrics) count(allocs map[string]*alloc, tasks int) {
	m.tasks.Set(float64(tasks))
	n := map[reconcile.State]int{}
	for _, a := range allocs {
		n[a.act.Reached]++
	}
	for s := reconcile.Pending; s <= reconcile.Stopped; s++ {
		m.allocs.WithLabelValues(s.String()).Set(float64(n[s]))
	}
}
