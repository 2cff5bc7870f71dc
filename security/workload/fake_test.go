package workload_test

import (
	"crypto/rand"
	"crypto/x509"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/pkitest"
)

// fake is a Workload API that gives each caller the same identities.
type fake struct {
	workload.UnimplementedSpiffeWorkloadAPIServer
	t    *testing.T
	path string
	stop func()

	mu sync.Mutex
	// answer is the present answer, and nil while nobody is registered.
	answer *workload.X509SVIDResponse
	// changed is closed at the next change of the answer.
	changed chan struct{}
}

// newFake returns a Workload API that does not listen yet, and its path.
func newFake(t *testing.T) *fake {
	return &fake{t: t, path: t.TempDir() + "/agent.sock", changed: make(chan struct{})}
}

func (f *fake) socket() string { return "unix://" + f.path }

// listen starts the server until the test ends or stop is called.
func (f *fake) listen() {
	f.t.Helper()
	l, err := new(net.ListenConfig).Listen(f.t.Context(), "unix", f.path)
	if err != nil {
		f.t.Fatal(err)
	}
	server := grpc.NewServer()
	workload.RegisterSpiffeWorkloadAPIServer(server, f)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	f.stop = sync.OnceFunc(func() {
		server.Stop()
		if err := <-served; err != nil {
			f.t.Error(err)
		}
	})
	f.t.Cleanup(f.stop)
}

// give changes the answer to these identities.
func (f *fake) give(all ...pki.Credentials) {
	f.t.Helper()
	answer := new(workload.X509SVIDResponse)
	for _, c := range all {
		key, err := x509.MarshalPKCS8PrivateKey(c.Key)
		if err != nil {
			f.t.Fatal(err)
		}
		answer.Svids = append(answer.Svids, &workload.X509SVID{
			SpiffeId: c.Chain[0].URIs[0].String(), X509Svid: der(c.Chain), X509SvidKey: key, Bundle: der(c.Roots.Certs),
		})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
	close(f.changed)
	f.changed = make(chan struct{})
}

func der(certs []*x509.Certificate) []byte {
	var out []byte
	for _, c := range certs {
		out = slices.Concat(out, c.Raw)
	}
	return out
}

// FetchX509SVID sends the answer, and each later one. Like SPIRE, the server refuses a process that is
// not registered.
func (f *fake) FetchX509SVID(_ *workload.X509SVIDRequest, stream grpc.ServerStreamingServer[workload.X509SVIDResponse]) error {
	if md, _ := metadata.FromIncomingContext(stream.Context()); !slices.Equal(md.Get("workload.spiffe.io"), []string{"true"}) {
		return status.Error(codes.InvalidArgument, "security header missing from request")
	}
	for {
		f.mu.Lock()
		answer, changed := f.answer, f.changed
		f.mu.Unlock()
		if answer == nil {
			return status.Error(codes.PermissionDenied, "no identity issued")
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// direct returns the credentials of a member that the root itself has issued, as SPIRE does.
func direct(t *testing.T, ca *pkitest.CA, path string) pki.Credentials {
	t.Helper()
	key, err := pki.NewKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ca.Root.Issue(ca.ID(path), key.Public(), pki.AgentLife, pki.Env{Now: ca.Now, Rand: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	roots, err := pki.NewRoots(ca.Root.Cert)
	if err != nil {
		t.Fatal(err)
	}
	return pki.Credentials{Chain: []*x509.Certificate{cert}, Key: key, Roots: roots}
}
