package regional

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/google/uuid"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/security/identity"
)

// raftListener returns the listener of Raft. With an identity only servers of the region can
// connect to the listener.
func raftListener(cfg Config, lis net.Listener) net.Listener {
	return cfg.Identity.Listener(lis, identity.ServersOf(cfg.Region.GetName()))
}

// raftNet returns the network over which Raft dials. With an identity the connections are
// encrypted, and lead to servers of the region only.
func raftNet(cfg Config) network.Net {
	n, dial := cfg.Net, cfg.Net.Dial
	n.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := dial(ctx, addr)
		if err != nil {
			return nil, err
		}
		return cfg.Identity.Secure(ctx, conn, identity.ServersOf(cfg.Region.GetName()))
	}
	return n
}

// openIdentity opens the data directory, nil with InMemory. It returns the server's id: its
// name and a random part. A server that replaces this one under the same name has another
// random part, because Raft must distinguish the two.
func openIdentity(cfg Config) (dir *serve.DataDir, id string, err error) {
	fresh := cfg.Name + "." + uuid.NewString()[:8]
	if cfg.InMemory {
		return nil, fresh, nil
	}
	dir, err = serve.OpenDataDir(cfg.DataDir, "regional/"+cfg.Region.GetName(), "")
	if err != nil {
		return nil, "", err
	}
	id, err = readIdentity(dir.Path("server-id"), fresh, cfg.Name)
	return dir, id, err
}

// readIdentity reads a server's id from a file, or stores fresh as the id. A server
// whose name was changed keeps the id of its file.
func readIdentity(path, fresh, name string) (string, error) {
	raw, err := os.ReadFile(path)
	if err == nil {
		if id := strings.TrimSpace(string(raw)); id != "" {
			return id, nil
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("identity of server %s: %w", name, err)
	}
	return fresh, writeIdentity(path, fresh)
}

// writeIdentity stores a server's id durably.
func writeIdentity(path, id string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("identity of server %s: %w", id, err)
	}
	_, err = f.WriteString(id + "\n")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("identity of server %s: %w", id, err)
	}
	return nil
}
