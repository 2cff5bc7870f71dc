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

	"github.com/nusa-scheduler/nusa/internal/replace"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// copyEvery is how often a server asks the master for its copy. copyTimeout bounds one
	// request.
	copyEvery   = 15 * time.Second
	copyTimeout = 5 * time.Second
	// saveEvery is how often a changed copy is written to disk, because the coordinates in
	// it change all the time. saveAges is how often an unchanged copy is written, to store
	// its ages.
	saveEvery = time.Minute
	saveAges  = time.Hour
	// maxFile bounds the file, in bytes. 2,048 peers, 1,000 origin records and a matrix of
	// 2,048 regions need less.
	maxFile = 15 << 20
)

// Copier copies the master's FederationCache to this server, and this server's
// FederationCache to disk.
type Copier struct {
	Federation *FederationCache
	// Path is the path of the file. Empty: nothing is written.
	Path string
	Log  *slog.Logger
	// Leads reports whether this server is the master, and whether it also has a session
	// with the global tier.
	Leads func() (leads, connected bool)
	// Master returns a connection to the region's master. The result is nil while no master
	// is known, and when this server is the master.
	Master func() *grpc.ClientConn

	// Only Run uses these fields: the token of the file's content, and the time when the
	// file was written.
	savedToken string
	savedAt    time.Duration
}

// Load reads the file that an earlier process of this server wrote. After an error, which
// it logs, the cache stays empty until the global tier or the master sends the messages.
func (c *Copier) Load() {
	if c.Path == "" {
		return
	}
	if err := c.load(); err != nil {
		c.Log.Warn("cannot read the stored messages of the global tier", "path", c.Path, "error", err)
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
		return fmt.Errorf("the file has %d bytes, more than %d", info.Size(), maxFile)
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

// Run updates the copy until ctx ends, and then saves it once more.
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
			c.Log.Warn("cannot store the messages of the global tier", "path", c.Path, "error", err)
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

// save writes the file if the copy has changed since the last write. With last it does not
// wait until saveEvery has passed.
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
	c.savedToken, c.savedAt = k.GetToken(), now // these fields are set after a failure too, so that the next try waits
	return replace.File(c.Path, raw)
}

// copyFromMaster requests the master's copy. A master of an earlier version does not have
// this call, and then this server has no copy.
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
		c.Log.Debug("cannot copy the messages of the global tier from the master", "master", conn.Target(), "error", err)
	}
}
