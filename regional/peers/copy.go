package peers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// copyEvery is how often a server asks the master for its copy, and
	// copyTimeout bounds one request.
	copyEvery   = 15 * time.Second
	copyTimeout = 5 * time.Second
	// saveEvery is how often a changed copy is written to disk: coordinates
	// change all the time. saveAges is how often an unchanged copy is written, to
	// store its ages.
	saveEvery = time.Minute
	saveAges  = time.Hour
	// maxFile bounds the file, in bytes: 2,048 peers, 1,000 origin records and a
	// matrix of 2,048 regions, with room.
	maxFile = 15 << 20
)

// Copier copies the master's FederationCache to a server, and the copy to disk.
type Copier struct {
	Federation *FederationCache
	// Path is the file; empty writes nothing.
	Path string
	Log  *slog.Logger
	// Leads reports whether this server is the master, and whether it then has a
	// session with the global tier.
	Leads func() (leads, connected bool)
	// Master returns a connection to the region's master; nil when the master is
	// unknown or is this server.
	Master func() *grpc.ClientConn

	// Only Run uses these: the token of the file's content, and when the file was
	// written.
	savedToken string
	savedAt    time.Duration
}

// Load reads the file that an earlier process of this server wrote. A file that
// cannot be read is logged: the region then waits for the global tier.
func (c *Copier) Load() {
	if c.Path == "" {
		return
	}
	if err := c.load(); err != nil {
		c.Log.Warn("cannot read what the global tier sent before", "path", c.Path, "error", err)
	}
}

func (c *Copier) load() error {
	info, err := os.Stat(c.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Size() > maxFile {
		return fmt.Errorf("%d bytes, at most %d are read", info.Size(), maxFile)
	}
	raw, err := os.ReadFile(c.Path)
	if err != nil {
		return err
	}
	k := &nusav1.FederationCache{}
	if err := proto.Unmarshal(raw, k); err != nil {
		return err
	}
	since := max(time.Since(info.ModTime()), 0)
	for _, age := range []**durationpb.Duration{&k.PeersAge, &k.OriginsAge, &k.MatrixAge} {
		if *age != nil {
			*age = durationpb.New((*age).AsDuration() + since)
		}
	}
	return c.Federation.adopt(k)
}

// Run updates the copy until ctx ends, and then saves it a last time.
func (c *Copier) Run(ctx context.Context) error {
	tick := time.NewTicker(copyEvery)
	defer tick.Stop()
	for {
		leads, connected := c.Leads()
		if !leads {
			c.copyFromMaster(ctx) // does nothing once ctx has ended
		} else if connected {
			c.Federation.Connected()
		}
		if err := c.save(ctx.Err() != nil); err != nil {
			c.Log.Warn("cannot write what the global tier sent", "path", c.Path, "error", err)
		}
		if ctx.Err() != nil {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// save writes the file if the copy changed since the last time; the last call
// does not wait for saveEvery.
func (c *Copier) save(last bool) error {
	k, now := c.Federation.Copy(""), c.Federation.clock()
	if c.Path == "" || k.GetToken() == "" {
		return nil
	}
	wait := saveEvery
	if k.GetToken() == c.savedToken {
		wait = saveAges
	}
	if c.savedToken != "" && !last && now-c.savedAt < wait {
		return nil
	}
	raw, err := proto.Marshal(k)
	if err != nil {
		return err
	}
	c.savedToken, c.savedAt = k.GetToken(), now // also after a failure, so that the next try waits
	return serve.ReplaceFile(c.Path, raw)
}

// copyFromMaster requests the master's copy. A master of an earlier version does not
// have the call; this server then has no copy.
func (c *Copier) copyFromMaster(ctx context.Context) {
	conn := c.Master()
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, copyTimeout)
	defer cancel()
	k, err := nusav1.NewSiblingsClient(conn).Kept(ctx, &nusav1.FederationCacheRequest{Token: c.Federation.Copy("").GetToken()})
	if err == nil {
		err = c.Federation.adopt(k)
	}
	if err != nil && ctx.Err() == nil {
		c.Log.Debug("cannot copy what the master received from the global tier", "master", conn.Target(), "error", err)
	}
}
