package uplink

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
)

// TestFirewallIsNamedOnlyWithoutAnswer: the warning about a missing session names the
// firewall only if no server has answered, and --identity only if a program accepted the
// connection and closed it.
func TestFirewallIsNamedOnlyWithoutAnswer(t *testing.T) {
	dial := `connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`
	for _, c := range []struct {
		err  error
		hint bool
	}{
		{fmt.Errorf("%w: another region has this name", errRefused), false},
		{fmt.Errorf("%w: welcomed in 9s", errNotNow), false},
		{errForeign, false},
		{fmt.Errorf("wait for the welcome: %w", rpcerr.Error{Code: codes.Unavailable, Message: "no leader", Reason: rpcerr.ReasonNoLeader}.Err()), false},
		{fmt.Errorf("wait for the welcome: %w", status.Error(codes.PermissionDenied, "no")), false},
		{fmt.Errorf("open a session: %w", status.Error(codes.Unavailable, dial)), true},
		{fmt.Errorf("wait for the welcome: %w", status.Error(codes.Canceled, "context canceled")), true},
		{fmt.Errorf("wait for the welcome: %w", status.Error(codes.Unavailable, `connection error: desc = "error reading server preface: EOF"`)), false},
		{errors.New("no such host"), true},
	} {
		var out bytes.Buffer
		u := &Uplink{cfg: Config{Logger: slog.New(slog.NewTextHandler(&out, nil))}}
		u.warn("g1:7600", c.err, 30*time.Second)
		if hint := strings.Contains(out.String(), "firewall"); hint != c.hint || !strings.Contains(out.String(), "for=30s") ||
			strings.Contains(out.String(), "need --identity") != strings.Contains(c.err.Error(), "preface") {
			t.Errorf("%v: %s", c.err, out.String())
		}
	}
}
