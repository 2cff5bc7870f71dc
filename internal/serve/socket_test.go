package serve_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestSocket: only the owner can open the socket, one server has it at a time, and a socket that a
// killed process has left is no obstacle.
func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nusa.sock")
	left, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	left.(*net.UnixListener).SetUnlinkOnClose(false)
	left.Close()
	opts := serve.Options{Net: network.Host(), Socket: path}
	_, stop := run(t, opts)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := serve.Open(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "another process listens there: name another with --socket") {
		t.Errorf("a second server: %v", err)
	}
	conn, err := grpc.NewClient("passthrough:///localhost", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if info, err := nusav1.NewSystemClient(conn).Info(t.Context(), &nusav1.InfoRequest{}); err != nil || info.GetRole() != "test" {
		t.Errorf("%v, %v", info, err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
	opts.Socket = filepath.Join(t.TempDir(), strings.Repeat("x", 110))
	if _, err := serve.Open(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "name a shorter one with --socket") {
		t.Errorf("a long path: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	opts.Socket = file
	if _, err := serve.Open(t.Context(), opts); err == nil {
		t.Error("a file is replaced by a socket")
	}
}
