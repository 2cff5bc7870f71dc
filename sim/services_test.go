package sim_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"google.golang.org/grpc"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
	"github.com/nusa-scheduler/nusa/sim/simnet"
)

// offering returns a job with a service that runs in one region.
func offering(name, region string, count int) string {
	return fmt.Sprintf(`
name: %s
type: service
regions: {allow: [{name: %s}]}
groups:
  web:
    count: %d
    ports: {http: {}}
    services: {shop: {port: http, tags: [%s]}}
    tasks:
      main:
        driver: process
        config: {command: work}
        resources: {cpu: 100m, memory: 64MiB}
`, name, region, count, name)
}

// asked sends a question to the DNS server of an agent and returns the records of the reply.
func asked(ctx context.Context, f *sim.Federation, agent, name string, kind uint16) ([]dns.RR, int, error) {
	conn, err := f.Net.Net("10.255.0.1").Dial(ctx, f.Process(agent).IP+":7653")
	if err != nil {
		return nil, 0, err
	}
	defer conn.Close()
	client := &dns.Conn{Conn: conn}
	if err := client.WriteMsg(new(dns.Msg).SetQuestion(name, kind)); err != nil {
		return nil, 0, err
	}
	m, err := client.ReadMsg()
	if err != nil {
		return nil, 0, err
	}
	return m.Answer, m.Rcode, nil
}

// chosen returns why the agent answers as it does.
func chosen(ctx context.Context, f *sim.Federation, agent, name string) (string, error) {
	all, code, err := asked(ctx, f, agent, name, dns.TypeTXT)
	if err != nil || len(all) != 1 {
		return dns.RcodeToString[code], err
	}
	return all[0].(*dns.TXT).Txt[0], nil
}

// TestServices: a service runs in two regions. The agents answer with the nearest instances, also
// without the global tier, and without their master. A region that is lost is forgotten.
func TestServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := sim.Start(t, sim.Options{DNS: true, Agents: 1, Disk: true, Net: simnet.Options{Latency: func(a, b string) time.Duration { return 2 * time.Millisecond }}})
		f.Submit(offering("near", "alpha", 2))
		f.Submit(offering("far", "beta", 1))
		const name = "shop.default.service.nusa."
		says := func(agent, name string, parts ...string) {
			t.Helper()
			f.Eventually(5*time.Minute, fmt.Sprint(agent, " says ", parts), func(ctx context.Context) error {
				text, err := chosen(ctx, f, agent, name)
				if err != nil {
					return err
				}
				for _, p := range parts {
					if !strings.Contains(text, p) {
						return fmt.Errorf("%s: %q lacks %q", agent, text, p)
					}
				}
				return nil
			})
		}
		says("alpha-agent-1", name, "2 instances in this region; next beta", "ms measured; confirmed 0s ago")
		says("beta-agent-1", name, "1 instance in this region; next alpha", "ms measured; confirmed 0s ago")
		says("alpha-agent-1", "far."+name, "none in this region; 1 instance in beta, ", "ms measured")
		says("alpha-agent-1", "other."+name, "NXDOMAIN")

		resolve := func(conn *grpc.ClientConn, from string) (out *nusav1.ResolveServiceResponse) {
			t.Helper()
			f.Eventually(time.Minute, "resolve", func(ctx context.Context) (err error) {
				out, err = nusav1.NewServicesClient(conn).Resolve(ctx, &nusav1.ResolveServiceRequest{Name: "shop", From: from})
				return err
			})
			return out
		}
		for _, c := range []struct {
			conn        *grpc.ClientConn
			from, first string
		}{{f.Global(1), "beta", "beta"}, {f.Global(1), "alpha", "alpha"}, {f.Server("beta", 1), "", "beta"}, {f.Server("beta", 1), "alpha", "alpha"}} {
			got := resolve(c.conn, c.from)
			if len(got.GetRegions()) != 2 || got.GetRegions()[0].GetRegion() != c.first || got.GetRegions()[1].GetRtt() == nil || got.GetAge().AsDuration() != 0 {
				t.Errorf("from %q: %v", c.from, got)
			}
		}

		// An island goes on, and says how old its knowledge of the other region is.
		heal := f.Cut(f.GlobalIPs(), f.RegionIPs("alpha"))
		time.Sleep(2 * time.Minute)
		says("alpha-agent-1", name, "2 instances in this region; next beta", "confirmed 0s ago")
		says("alpha-agent-1", "far."+name, "1 instance in beta", "; confirmed 1m")
		if got := resolve(f.Server("alpha", 1), ""); got.GetAge().AsDuration() != 0 || got.GetRegions()[1].GetAge().AsDuration() < time.Minute {
			t.Errorf("an island says %v", got)
		}
		// Its master is away, too.
		f.Kill("alpha-1")
		time.Sleep(time.Minute)
		says("alpha-agent-1", name, "2 instances in this region; next beta", "confirmed 1m")
		f.StartServer("alpha", 1)
		heal()
		says("alpha-agent-1", "far."+name, "1 instance in beta", "confirmed 0s ago")

		// Another active global server takes nothing away, and a stopped job is forgotten everywhere.
		late := f.Cut(f.GlobalIPs(), f.RegionIPs("beta"))
		f.Kill("global-1")
		f.StartGlobal(1)
		for complete, tries := false, 0; !complete; tries++ { // what the new server says is complete, or an error
			if tries == 20 {
				late()
			}
			time.Sleep(200 * time.Millisecond)
			_ = f.OnGlobal(func(c *grpc.ClientConn) error {
				list, err := nusav1.NewServicesClient(c).List(t.Context(), &nusav1.ListServicesRequest{})
				complete = err == nil
				if all := list.GetServices(); complete && (len(all) != 1 || all[0].GetInstances() != 3) {
					t.Fatalf("the new global server lists %v", all)
				}
				return err
			})
		}
		for range 60 {
			time.Sleep(time.Second)
			if text, err := chosen(t.Context(), f, "alpha-agent-1", "far."+name); err != nil || !strings.Contains(text, "1 instance in beta") {
				t.Fatalf("after a restart of the global server: %q, %v", text, err)
			}
		}
		says("alpha-agent-1", "far."+name, "1 instance in beta", "confirmed 0s ago")
		f.StopJob("far")
		says("alpha-agent-1", "far."+name, "NXDOMAIN")
		says("beta-agent-1", name, "none in this region; 2 instances in alpha, ", "ms measured")
	})
}
