package tiers_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/pki"
)

// attackTimes: certificates that have ended or have not begun are refused, also at a server that
// accepts the same member with another certificate.
func (f *federation) attackTimes(t *testing.T) {
	for _, member := range []string{"operator/jane", "region/a/agent/n1", "region/a/server/s1"} {
		port := portA
		if member == "operator/jane" {
			port = portGlobal
		}
		life := pki.DefaultLife(f.ca.ID(member).Kind)
		for what, c := range map[string]struct {
			off   time.Duration
			want  bool
			chain func(pki.Credentials) []*x509.Certificate
		}{
			"valid":            {0, true, nil},
			"ended":            {-life - time.Hour, false, nil},
			"not begun":        {life, false, nil},
			"without its key":  {0, false, func(pki.Credentials) []*x509.Certificate { return f.ca.Issue(member).Chain }},
			"without a region": {0, member == "operator/jane", func(c pki.Credentials) []*x509.Certificate { return c.Chain[:1] }},
		} {
			now := f.ca.Now
			f.ca.Now = now.Add(c.off)
			creds := f.ca.Issue(member)
			f.ca.Now = now
			if c.chain != nil {
				creds.Chain = c.chain(creds)
			}
			if err := f.shows(t, creds, port); (err == nil) != c.want {
				t.Errorf("%s with a certificate that is %s: %v", member, what, err)
			}
		}
	}
}

// shows makes a call with credentials that package trust would refuse to use. A denial of the call is no
// error: then the server has accepted the certificate.
func (f *federation) shows(t *testing.T, c pki.Credentials, port int) error {
	t.Helper()
	cert := tls.Certificate{PrivateKey: c.Key}
	for _, one := range c.Chain {
		cert.Certificate = append(cert.Certificate, one.Raw)
	}
	config := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }}
	conn, err := grpc.NewClient(f.addr(port), grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err = nusav1.NewSystemClient(conn).Info(ctx, &nusav1.InfoRequest{})
	if status.Code(err) == codes.PermissionDenied {
		return nil
	}
	return err
}

// attackAuthority: the authority of region b issues certificates of others. No server accepts them.
func (f *federation) attackAuthority(t *testing.T) {
	b := f.ca.Region("b")
	key, err := pki.NewKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, member := range []string{"region/a/agent/n1", "region/a/server/s1", "operator/jane", "global/g1", "region/b/agent/n7"} {
		uri, err := url.Parse(f.ca.ID(member).String())
		if err != nil {
			t.Fatal(err)
		}
		// The thief of the authority's key does not use package pki, which would refuse.
		template := &x509.Certificate{
			SerialNumber: b.Cert.SerialNumber, NotBefore: f.ca.Now.Add(-time.Minute), NotAfter: f.ca.Now.Add(time.Hour), URIs: []*url.URL{uri},
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
		}
		der, err := x509.CreateCertificate(rand.Reader, template, b.Cert, key.Public(), b.Key)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		own := member == "region/b/agent/n7"
		for _, port := range []int{portGlobal, portA, portB} {
			err := f.shows(t, pki.Credentials{Chain: []*x509.Certificate{leaf, b.Cert}, Key: key}, port)
			if (err == nil) != (own && port == portB) {
				t.Errorf("%s by the authority of region b, at port %d: %v", member, port, err)
			}
		}
	}
}

// attackAsAgent: who has the certificate of an agent calls every method. Only those of agents answer.
func (f *federation) attackAsAgent(t *testing.T) {
	may := []string{"/nusa.v1.Discovery/Follow", "/nusa.v1.Identity/Join", "/nusa.v1.Identity/Renew", "/nusa.v1.System/Info", "/nusa.v1.Dispatch/Session", "/nusa.v1.Dispatch/Tunnel"}
	conn := f.as("region/a/agent/n1", portA)
	called := 0
	protoregistry.GlobalFiles.RangeFilesByPackage("nusa.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				m := service.Methods().Get(j)
				name := "/" + string(service.FullName()) + "/" + string(m.Name())
				if service.Name() == "Driver" || slices.Contains(may, name) {
					continue // a service of plugins
				}
				called++
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				err := invoke(ctx, conn, name, m)
				cancel()
				if code := status.Code(err); code != codes.PermissionDenied && code != codes.Unimplemented {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		return true
	})
	if called < 50 {
		t.Errorf("%d methods were called", called)
	}
}

// invoke calls a method with an empty request, and returns the error.
func invoke(ctx context.Context, conn *grpc.ClientConn, name string, m protoreflect.MethodDescriptor) error {
	in, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
	if err != nil {
		return err
	}
	out, err := protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
	if err != nil {
		return err
	}
	req, resp := in.New().Interface(), out.New().Interface()
	if !m.IsStreamingClient() && !m.IsStreamingServer() {
		return conn.Invoke(ctx, name, req, resp)
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, name)
	if err != nil {
		return err
	}
	if err := errors.Join(stream.SendMsg(req), stream.CloseSend()); err != nil {
		return stream.RecvMsg(resp)
	}
	return stream.RecvMsg(resp)
}

// attackReports: an agent of region a, with a certificate of its own, reports the end of what runs on
// other nodes, and says that they are gone. The region believes nothing, and sends it no order about them.
func (f *federation) attackReports(t *testing.T, allocs []*nusav1.Allocation) {
	var ids []string
	for _, a := range allocs {
		if a.GetRegion() == "a" {
			ids = append(ids, a.GetId())
		}
	}
	if len(ids) == 0 {
		t.Fatal("nothing runs in region a")
	}
	var orders []string
	f.eventually("the session of agent n9", func(ctx context.Context) (err error) {
		for s := range 3 {
			orders, err = f.liar(ctx, portA+10*s, ids)
			if err == nil {
				return nil
			}
		}
		return err
	})
	if len(orders) > 0 {
		t.Errorf("the agent has orders about %v", orders)
	}
	list, err := nusav1.NewAllocationsClient(f.as("operator/jane", portA)).List(t.Context(), &nusav1.ListAllocationsRequest{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list.GetAllocations() {
		if slices.Contains(ids, a.GetId()) && a.GetState() != nusav1.AllocState_ALLOC_STATE_RUNNING {
			t.Errorf("the region believes that %s is %s: %q, desired %s", a.GetId(), a.GetState(), a.GetMessage(), a.GetDesired())
		}
	}
}

// liar opens the session of agent n9 at a server, and sends reports about allocations of others. It returns those
// about which the server sent orders, once the server has answered the reports.
func (f *federation) liar(ctx context.Context, port int, ids []string) (orders []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	stream, err := nusav1.NewDispatchClient(f.as("region/a/agent/n9", port)).Session(ctx)
	if err != nil {
		return nil, err
	}
	hello := &nusav1.AgentHello{NodeId: "99999999-0000-4000-8000-000000000009", Name: "n9", Region: "a", Protocol: 1, Inventory: &nusav1.NodeInventory{}}
	if err := stream.Send(&nusav1.AgentMessage{Kind: &nusav1.AgentMessage_Hello{Hello: hello}}); err != nil {
		return nil, err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		switch {
		case m.GetStandby() != nil, m.GetRefused() != nil:
			return nil, fmt.Errorf("%v", m)
		case m.GetWelcome() != nil:
			reports := &nusav1.AllocReports{Full: true, Last: true, Removed: ids, Position: &nusav1.Position{Epoch: "liar", Sequence: 1}}
			for _, id := range ids {
				reports.Reports = append(reports.Reports, &nusav1.AllocReport{Id: id, State: nusav1.AllocState_ALLOC_STATE_FAILED, Message: "a lie", Incarnation: 1 << 40, Index: 1 << 40})
			}
			if err := stream.Send(&nusav1.AgentMessage{Kind: &nusav1.AgentMessage_Reports{Reports: reports}}); err != nil {
				return nil, err
			}
		case m.GetOrders() != nil:
			for _, o := range m.GetOrders().GetOrders() {
				orders = append(orders, o.GetAllocation().GetId())
			}
		case m.GetReportsAck() != nil:
			return orders, nil
		}
	}
}

// attackNames: names that are paths, or have bytes that no name has, are refused everywhere.
func (f *federation) attackNames(t *testing.T, allocs []*nusav1.Allocation) {
	ctx := t.Context()
	spec := func() *nusav1.JobSpec {
		s, err := job.Parse([]byte(twoRegions), "job.yaml")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, name := range []string{"../x", "..", ".", "a/b", "/etc/passwd", "a\x00b", "a%2fb", "a\\b", "a\nb", strings.Repeat("a", 5000), "web@a@b"} {
		for what, change := range map[string]func(*nusav1.JobSpec){
			"job":       func(s *nusav1.JobSpec) { s.Name = name },
			"namespace": func(s *nusav1.JobSpec) { s.Namespace = name },
			"group":     func(s *nusav1.JobSpec) { s.Groups[name] = s.GetGroups()["main"] },
			"task":      func(s *nusav1.JobSpec) { s.Groups["main"].Tasks[name] = s.GetGroups()["main"].GetTasks()["t"] },
			"secret":    func(s *nusav1.JobSpec) { s.Groups["main"].Tasks["t"].Secrets = []string{name} },
		} {
			s := spec()
			change(s)
			_, err := nusav1.NewJobsClient(f.as("operator/jane", portGlobal)).Submit(ctx, &nusav1.SubmitRequest{Spec: s})
			refusedName(t, what, name, err)
		}
		conn := f.as("operator/jane", portGlobal)
		_, err := nusav1.NewRegionsClient(conn).Define(ctx, &nusav1.DefineRegionRequest{Definition: &nusav1.RegionDefinition{Name: name}})
		refusedName(t, "region", name, err)
		_, err = nusav1.NewAuthClient(conn).SetRole(ctx, &nusav1.SetRoleRequest{Role: &nusav1.AuthRole{Name: name}})
		refusedName(t, "role", name, err)
		_, err = nusav1.NewMembersClient(conn).Ban(ctx, &nusav1.BanRequest{Role: "agent", Region: "a", Name: name})
		refusedName(t, "banned agent", name, err)
		for _, port := range []int{portGlobal, portStandby} {
			stream, err := nusav1.NewAllocationsClient(f.as("operator/jane", port)).Logs(ctx, &nusav1.LogsRequest{Allocation: allocs[0].GetId(), Task: name, Stdout: true})
			refusedName(t, "logs of the task", name, first(stream, err))
		}
	}
}

// refusedName fails the test unless an error says that the caller has made a mistake.
func refusedName(t *testing.T, what, name string, err error) {
	t.Helper()
	switch status.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition:
	default:
		t.Errorf("%s %.20q: %v", what, name, err)
	}
}

// attackSizes: a request or headers that are too large are refused, and the connection of others lives.
func (f *federation) attackSizes(t *testing.T) {
	for member, port := range map[string]int{"operator/jane": portGlobal, "region/a/agent/n1": portA, "region/b/server/s1": portGlobal} {
		conn := f.as(member, port)
		large := metadata.AppendToOutgoingContext(t.Context(), "x-large", strings.Repeat("a", 1<<20))
		if _, err := nusav1.NewSystemClient(conn).Info(large, &nusav1.InfoRequest{}); err == nil {
			t.Errorf("%s: 1 MiB of headers is accepted", member)
		}
		_, err := nusav1.NewIdentityClient(conn).Join(t.Context(), &nusav1.JoinRequest{Request: make([]byte, 5<<20)})
		if code := status.Code(err); code != codes.ResourceExhausted && code != codes.Unavailable {
			t.Errorf("%s: 5 MiB of a request: %v", member, err)
		}
		if _, err := nusav1.NewSystemClient(conn).Info(t.Context(), &nusav1.InfoRequest{}, grpc.WaitForReady(true)); err != nil {
			t.Errorf("%s: a call after the large ones: %v", member, err)
		}
	}
}
