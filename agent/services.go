package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strconv"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/agent/dns"
	"github.com/nusa-scheduler/nusa/internal/discovery"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// services is the agent's copy of the instances of services, and the DNS server that answers from it. It
// is nil if the agent has no DNS address.
type services struct {
	region, path string
	store        *discovery.Store
	dns          *dns.Server
	log          *slog.Logger
}

// openServices reads the copy of an earlier process and opens the DNS sockets.
func openServices(ctx context.Context, cfg Config, dir *serve.DataDir) (*services, error) {
	if cfg.DNSAddr == "" {
		return nil, nil
	}
	s := &services{region: cfg.Region, path: dir.Path("services"), store: discovery.New(cfg.Clock), log: cfg.Logger}
	if err := discovery.Load(s.store, s.path, cfg.Region); err != nil {
		cfg.Logger.Warn("the stored copy of the services is not used", "path", s.path, "error", err)
	}
	s.store.Disconnected()
	var err error
	s.dns, err = dns.Listen(ctx, cfg.Net, cfg.DNSAddr, s.store, cfg.Logger)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *services) close() {
	if s != nil {
		s.dns.Close()
	}
}

// address returns the address of the DNS server, or "".
func (s *services) address() string {
	if s == nil {
		return ""
	}
	return s.dns.Addr()
}

// run answers questions and saves the copy until ctx ends.
func (s *services) run(ctx context.Context) error {
	if s == nil {
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.dns.Run(ctx) })
	g.Go(func() error { return discovery.SaveEach(ctx, s.store, s.path, s.log) })
	return g.Wait()
}

// discover returns the function that follows a master, or nil.
func (s *services) discover() func(context.Context, nusav1.DiscoveryClient) {
	if s == nil {
		return nil
	}
	return func(ctx context.Context, client nusav1.DiscoveryClient) {
		source := &discovery.Source{
			Client: client, Store: s.store, Own: s.region, Roster: s.store.SetRoster, Up: s.store.Connected, Down: s.store.Disconnected,
		}
		discovery.Keep(ctx, source.Follow, discovery.LogFailures(s.log, "copy of the master"))
	}
}

// register serves Services to the master, over the tunnel to it.
func (s *services) register(g grpc.ServiceRegistrar) {
	if s != nil {
		nusav1.RegisterServicesServer(g, s.service())
	}
}

// service returns the service Services. Its callers may read everything.
func (s *services) service() *discovery.Service {
	return &discovery.Service{
		Store: func() (*discovery.Store, error) { return s.store, nil },
		May:   func(context.Context, string, string) bool { return true },
	}
}

// serveHTTP adds Services to the agent's HTTP server, and the targets of Prometheus. Like DNS, they show
// the services of all namespaces to every process that reaches them.
func (s *services) serveHTTP(mux *http.ServeMux) {
	if s == nil {
		return
	}
	serve := func(pattern string, call func(r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			out, err := call(r)
			text := []byte(nil)
			if m, ok := out.(proto.Message); ok && err == nil {
				text, err = protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
			} else if err == nil {
				text, err = json.Marshal(out)
			}
			if err != nil { // Prometheus keeps its targets after an error
				http.Error(w, status.Convert(err).Message(), runtime.HTTPStatusFromCode(status.Code(err)))
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(append(text, '\n')) // the client may be gone
		})
	}
	v := s.service()
	serve("GET /v1/services", func(r *http.Request) (any, error) {
		limit, err := strconv.ParseInt(cmp.Or(r.FormValue("limit"), "0"), 10, 32)
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "limit: %.40q is not a number", r.FormValue("limit"))
		}
		return v.List(r.Context(), &nusav1.ListServicesRequest{
			Namespace: r.FormValue("namespace"), Name: r.FormValue("name"), Limit: int32(limit), PageToken: cmp.Or(r.FormValue("page_token"), r.FormValue("pageToken")),
			Tag: r.FormValue("tag"),
		})
	})
	serve("GET /v1/namespaces/{namespace}/services/{name}", func(r *http.Request) (any, error) {
		return v.Resolve(r.Context(), &nusav1.ResolveServiceRequest{
			Namespace: r.PathValue("namespace"), Name: r.PathValue("name"), Tag: r.FormValue("tag"), Nearest: r.FormValue("nearest") == "true",
		})
	})
	serve("GET /v1/services:http_sd", func(r *http.Request) (any, error) {
		return discovery.Targets(r.Context(), v.List, r.FormValue("namespace"), r.FormValue("name"))
	})
}
