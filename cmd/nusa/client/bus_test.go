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
	set *nusav1.SetBusRequest
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
		{[]string{"create", "ops"}, "0 addresses", 1},
		{[]string{"create", "ops", "--url", "tls://n", "--password-file", filepath.Join(dir, "none")}, "no such file", 1},
		{[]string{"create", "ops", "--url", "tls://n", "--broker-ca-file", filepath.Join(dir, "none")}, "no such file", 1},
		{[]string{"create", "ops", "--url", "amqps://a,amqps://b", "--user", "nusa", "--password-file", password, "--types", "job.*"}, "bus ops is stored", 0},
		{[]string{"list"}, "failing", 0},
		{[]string{"list"}, "ops: no queue is bound", 0},
		{[]string{"list", "-o", "json"}, `"published": "9"`, 0},
		{[]string{"show", "ops"}, "user nusa, a password", 0},
		{[]string{"test", "ops"}, "no queue is bound", 1},
		{[]string{"disable", "ops"}, "bus ops is disabled", 0},
		{[]string{"delete", "ops"}, "bus ops is deleted", 0},
	} {
		out, errOut, code := f.run(t.Context(), "", append(append([]string{"bus"}, c.args...), "--addr="+f.addr)...)
		if code != c.code || !strings.Contains(out+errOut, c.want) {
			t.Errorf("nusa bus %s: exit code %d, want %d with %q:\n%s%s", strings.Join(c.args, " "), code, c.code, c.want, out, errOut)
		}
		for line := range strings.Lines(out) {
			if len(strings.TrimRight(line, "\n")) > 80 && !strings.Contains(line, "{") {
				t.Errorf("nusa bus %s: a line of %d columns: %s", strings.Join(c.args, " "), len(line), line)
			}
		}
		if strings.Contains(out+errOut, "pa55word") {
			t.Errorf("nusa bus %s prints the password", strings.Join(c.args, " "))
		}
	}
	if got := f.buses.set; got.GetSecrets().GetPassword() != "pa55word" || len(got.GetBus().GetBroker().GetUrls()) != 2 || got.GetRevision() != -1 {
		t.Error("the request is not what the flags say")
	}
}
