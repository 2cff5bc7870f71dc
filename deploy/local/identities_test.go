//go:build integration

package local_test

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// nusa runs a command of the client with the identity of a member, and without one if member is empty.
func (f *federation) nusa(member string, args ...string) (string, error) {
	args = append(args, "--addr", fmt.Sprintf("127.0.0.1:%d", f.port))
	if member != "" {
		args = append(args, "--identity", filepath.Join(f.dir, "identity", member))
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(f.t.Context(), "../../bin/nusa", args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// TestIdentities: a federation of real processes with identities runs a job in all regions. Its tasks continue
// while a master, an agent and the active global server are killed, and while identities are renewed. A caller
// without an identity, or with that of another kind of member, is refused.
func TestIdentities(t *testing.T) {
	t.Parallel()
	f := start(t, "NUSA_TLS=1")
	var err error
	f.identity, err = trust.Open(trust.Options{Dir: filepath.Join(f.dir, "identity", "operator")})
	if err != nil {
		t.Fatal(err)
	}
	first, second := f.dial(f.port), f.dial(f.port+5)
	f.submit(second, counterJob)
	before := f.allRun(first, "after submit")

	t.Run("callers", func(t *testing.T) {
		for _, c := range []struct{ member, want string }{
			{"operator", "counter"},
			{"", "this client needs one, too: --identity (or NUSA_IDENTITY)"},
			{before[0].GetNodeName(), "the peer refuses the certificate of this program"},
			{before[0].GetRegion() + "-server-1", "may not call /nusa.v1.Jobs/List"},
		} {
			out, err := f.nusa(c.member, "job", "list")
			if (err == nil) != (c.member == "operator") || !strings.Contains(out, c.want) {
				t.Errorf("nusa job list as %q: %v, %s, want %q", c.member, err, out, c.want)
			}
		}
		plain, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", f.port), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer plain.Close()
		if _, err := nusav1.NewJobsClient(plain).List(t.Context(), &nusav1.ListJobsRequest{}); status.Code(err) != codes.Unavailable {
			t.Errorf("without an identity: %v", err)
		}
	})
	t.Run("renewal, and a master killed", func(t *testing.T) {
		region := before[0].GetRegion()
		for _, member := range []string{"global/global-1", "region/" + region + "/agent/" + before[0].GetNodeName(), "operator/operator"} {
			out, err := exec.CommandContext(t.Context(), "../../bin/nusa", "ca", "issue", member, "--dir", filepath.Join(f.dir, "ca"),
				"--out", filepath.Join(f.dir, "identity", filepath.Base(member))).CombinedOutput()
			if err != nil {
				t.Errorf("renew %s: %v, %s", member, err, out)
			}
		}
		// The agents and the next master connect again, with the renewed identities.
		old := f.master(first, region, "")
		f.script("kill", old)
		f.master(first, region, old)
		sameTasks(t, "master killed", before, f.allRun(first, "after another master was elected"))
		f.script("start", old)
	})
	t.Run("agent killed", func(t *testing.T) {
		victim := before[1].GetNodeName()
		f.script("kill", victim)
		f.script("start", victim)
		sameTasks(t, "agent killed and restarted", before, f.allRun(first, "after the agent came back"))
	})
	t.Run("active global server killed", func(t *testing.T) {
		old := f.active(first)
		f.script("kill", old)
		f.script("start", old)
		f.eventually("an active global server", func(ctx context.Context) error {
			_, err := nusav1.NewJobsClient(second).Get(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Namespace: "default", Name: "counter"}})
			return err
		})
		sameTasks(t, "active global server killed", before, f.allRun(second, "after another global server became active"))
	})
}
