package serve

import (
	"fmt"
	"net/http"
	"regexp"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// maxHTTP bounds the open connections of HTTP. One more closes the oldest.
const maxHTTP = 256

func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	// The live heap after a collection, and the number of forced collections. On an idle
	// server these metrics distinguish live memory from garbage.
	collections := collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile("^/gc/(heap/live:bytes|cycles/forced:gc-cycles)$")}
	r.MustRegister(collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collections)), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "nusa_build_info", Help: "Always 1; the version is a label.", ConstLabels: prometheus.Labels{"version": Version}})
	build.Set(1)
	r.MustRegister(build)
	return r
}

func (s *Server) handleHTTP() {
	// A server that responds is alive. To restart a server that waits for a quorum would
	// not help.
	s.Mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	s.Mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if s.stopping.Load() {
			http.Error(w, "stopping", http.StatusServiceUnavailable)
			return
		}
		if err := s.opts.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	s.Mux.Handle("GET /metrics", members(promhttp.HandlerFor(s.Registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Registry: s.Registry})))
}

// members lets only clients with a certificate make a request over TLS. The handshake has verified
// the certificate.
func members(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil && len(r.TLS.PeerCertificates) == 0 {
			http.Error(w, "give a certificate of the federation: only /livez and /readyz are for everybody", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func (s *Server) newHTTP() *http.Server {
	return &http.Server{
		Handler:           s.inside.count(s.Mux),
		ConnContext:       s.inside.connContext,
		ConnState:         s.inside.connState,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slogError(s.opts.Logger),
	}
}
