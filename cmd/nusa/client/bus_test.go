package client

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// busesServer has one bus, ops, whose broker refuses messages.
type busesServer struct {
	nusav1.UnimplementedBusesServer
	set    *nusav1.SetBusRequest
	intake *nusav1.SetIntakeRequest
}

// intakesServer has one intake, orders, of a full system.
type intakesServer struct {
	nusav1.UnimplementedIntakesServer
	buses *busesServer
}

var orders = &nusav1.Intake{
	Name: "orders", Broker: opsBus.GetBroker(), Namespace: "pay", Queue: "nusa.intake.orders", Exchange: "jobs", Principal: "operator/jane", InFlight: 32,
	Status: &nusav1.IntakeStatus{State: nusav1.BusState_BUS_STATE_FAILING, Taken: 12, Dead: 1, LastError: "the store is full"},
}

var opsBus = &nusav1.Bus{
	Name: "ops", Broker: &nusav1.Broker{Urls: []string{"amqps://rabbit.example.com:5671/prod"}, User: "nusa", HasPassword: true, Kind: nusav1.BrokerKind_BROKER_KIND_RABBITMQ},
	Types: []string{"region.*"}, Exchange: "nusa.events",
	Status: &nusav1.BusStatus{State: nusav1.BusState_BUS_STATE_FAILING, Cursor: 7, Lag: 3, Published: 9, LastError: "no queue is bound"},
}

func (s *busesServer) Set(_ context.Context, req *nusav1.SetBusRequest) (*nusav1.Bus, error) {
	s.set = req
	if len(req.GetBus().GetBroker().GetUrls()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "bus.broker.urls: 0 addresses")
	}
	if req.GetBus().GetName() == "old" && req.GetRevision() == -1 {
		return nil, status.Error(codes.Aborted, "bus old exists already, at revision 3")
	}
	return req.GetBus(), nil
}

func (*busesServer) List(context.Context, *nusav1.ListBusesRequest) (*nusav1.ListBusesResponse, error) {
	return &nusav1.ListBusesResponse{Buses: []*nusav1.Bus{opsBus}}, nil
}

func (*busesServer) Get(context.Context, *nusav1.GetBusRequest) (*nusav1.Bus, error) {
	return opsBus, nil
}

func (*busesServer) Test(context.Context, *nusav1.TestBusRequest) (*nusav1.TestBusResponse, error) {
	return &nusav1.TestBusResponse{Error: "no queue\nis bound", Duration: durationpb.New(12e6)}, nil
}

func (*busesServer) Disable(context.Context, *nusav1.DisableBusRequest) (*nusav1.Bus, error) {
	return opsBus, nil
}

func (*busesServer) Delete(context.Context, *nusav1.DeleteBusRequest) (*nusav1.DeleteBusResponse, error) {
	return &nusav1.DeleteBusResponse{}, nil
}

func (s intakesServer) Set(_ context.Context, req *nusav1.SetIntakeRequest) (*nusav1.Intake, error) {
	s.buses.intake = req
	return req.GetIntake(), nil
}

func (intakesServer) List(context.Context, *nusav1.ListIntakesRequest) (*nusav1.ListIntakesResponse, error) {
	return &nusav1.ListIntakesResponse{Intakes: []*nusav1.Intake{orders}}, nil
}

func (intakesServer) Get(context.Context, *nusav1.GetIntakeRequest) (*nusav1.Intake, error) {
	return orders, nil
}

func (intakesServer) Enable(context.Context, *nusav1.EnableIntakeRequest) (*nusav1.Intake, error) {
	return orders, nil
}

func (intakesServer) Disable(context.Context, *nusav1.DisableIntakeRequest) (*nusav1.Intake, error) {
	return orders, nil
}

func (intakesServer) Delete(context.Context, *nusav1.DeleteIntakeRequest) (*nusav1.DeleteIntakeResponse, error) {
	return &nusav1.DeleteIntakeResponse{}, nil
}

// TestBus: the commands send what files contain, and show what the server returns.
func TestBus(t *testing.T) {
	f := newFake(t)
	dir := t.TempDir()
	password := filepath.Join(dir, "password")
	if err := os.WriteFile(password, []byte("pa55word\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"bus", "create", "ops"}, "0 addresses", 1},
		{[]string{"bus", "create", "ops", "--url", "tls://n", "--password-file", filepath.Join(dir, "none")}, "no such file", 1},
		{[]string{"bus", "create", "ops", "--url", "tls://n", "--broker-ca-file", filepath.Join(dir, "none")}, "no such file", 1},
		{[]string{"bus", "create", "old", "--url", "tls://n"}, "at revision 3: --replace changes it", 1},
		{[]string{"bus", "create", "old", "--url", "tls://n", "--replace"}, "bus old is stored", 0},
		{[]string{"bus", "create", "ops", "--url", "amqps://a,amqps://b", "--user", "nusa", "--password-file", password, "--types", "job.*"}, "bus ops is stored", 0},
		{[]string{"bus", "list"}, "failing", 0},
		{[]string{"bus", "list"}, "ops: no queue is bound", 0},
		{[]string{"bus", "list", "-o", "json"}, `"published": "9"`, 0},
		{[]string{"bus", "show", "ops"}, "user nusa, a password", 0},
		{[]string{"bus", "test", "ops"}, "did not confirm the test event: no queue is bound", 1},
		{[]string{"bus", "disable", "ops"}, "bus ops is disabled", 0},
		{[]string{"bus", "delete", "ops"}, "bus ops is deleted", 0},
		{[]string{"intake", "create", "orders", "--url", "amqps://a", "--user", "nusa", "--password-file", password, "--exchange", "jobs", "--keys", "jobs.#", "--job-namespace", "pay"}, "intake orders is stored", 0},
		{[]string{"intake", "list"}, "orders: the store is full", 0},
		{[]string{"intake", "list", "-o", "json"}, `"taken": "12"`, 0},
		{[]string{"intake", "show", "orders"}, "operator/jane", 0},
		{[]string{"intake", "enable", "orders"}, "intake orders is enabled", 0},
		{[]string{"intake", "disable", "orders"}, "intake orders is disabled", 0},
		{[]string{"intake", "delete", "orders"}, "intake orders is deleted", 0},
	} {
		out, errOut, code := f.run(t.Context(), "", append(c.args, "--addr="+f.addr)...)
		if code != c.code || !strings.Contains(out+errOut, c.want) {
			t.Errorf("nusa %s: exit code %d, want %d with %q:\n%s%s", strings.Join(c.args, " "), code, c.code, c.want, out, errOut)
		}
		for line := range strings.Lines(out) {
			if len(strings.TrimRight(line, "\n")) > 80 && !strings.Contains(line, "{") {
				t.Errorf("nusa %s: a line of %d columns: %s", strings.Join(c.args, " "), len(line), line)
			}
		}
		if strings.Contains(out+errOut, "pa55word") {
			t.Errorf("nusa %s prints the password", strings.Join(c.args, " "))
		}
	}
	if got := f.buses.set; got.GetSecrets().GetPassword() != "pa55word" || len(got.GetBus().GetBroker().GetUrls()) != 2 || got.GetRevision() != -1 {
		t.Error("the request is not what the flags say")
	}
	if got := f.buses.intake; got.GetSecrets().GetPassword() != "pa55word" || got.GetIntake().GetNamespace() != "pay" || got.GetIntake().GetExchange() != "jobs" {
		t.Error("the request of an intake is not what the flags say")
	}
}
