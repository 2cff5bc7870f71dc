package hooks

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nusa-scheduler/nusa/global/hooks/delivery"
	"github.com/nusa-scheduler/nusa/internal/webhook"
)

// Metrics count what the delivery does, from the start of the process. They have no names of
// webhooks, because there may be many.
type Metrics struct {
	attempts *prometheus.CounterVec
	dropped  prometheus.Counter
	seconds  prometheus.Histogram
}

// NewMetrics returns metrics that are zero.
func NewMetrics() *Metrics {
	return &Metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nusa_webhook_attempts_total", Help: "Requests to the endpoints of webhooks, by what follows: delivered, retry, given_up or disabled."}, []string{"result"}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "nusa_webhook_dropped_total", Help: "Events that retention removed before they were sent to a webhook."}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "nusa_webhook_attempt_seconds", Help: "Duration of the requests to the endpoints of webhooks.", Buckets: prometheus.ExponentialBuckets(0.002, 3, 10)}), // 2 ms .. 39 s
	}
}

func (m *Metrics) observe(v delivery.Verdict, resp webhook.Response) {
	result := map[delivery.Verdict]string{
		delivery.Delivered: "delivered", delivery.Retry: "retry", delivery.GiveUp: "given_up", delivery.Disable: "disabled",
	}[v]
	m.attempts.WithLabelValues(result).Inc()
	m.seconds.Observe(resp.Took.Seconds())
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	m.attempts.Describe(ch)
	m.dropped.Describe(ch)
	m.seconds.Describe(ch)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.attempts.Collect(ch)
	m.dropped.Collect(ch)
	m.seconds.Collect(ch)
}
