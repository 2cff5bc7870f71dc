package discovery

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/internal/discovery"
	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// checkEach is how often a server looks whether it must follow another master.
const checkEach = 2 * time.Second

// Copier fills the store of a server that is not the master from the master, so that the server has a
// copy if it becomes the master while the global tier is unreachable.
type Copier struct {
	Region string
	Store  *discovery.Store
	// Master returns a connection to the region's master. The result is nil while no master is known,
	// and when this server is the master.
	Master func() *grpc.ClientConn
	// Path is the path of the file with the copy. Empty: nothing is written.
	Path string
	Log  *slog.Logger
}

// Load reads the file that an earlier process of this server wrote. It logs an error.
func (c *Copier) Load() {
	if c.Path == "" {
		return
	}
	if err := discovery.Load(c.Store, c.Path, c.Region); err != nil {
		c.Log.Warn("the stored copy of the services is not used", "path", c.Path, "error", err)
	}
}

// Run follows the master and saves the copy until ctx ends.
func (c *Copier) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.followMasters(ctx) })
	g.Go(func() error { return discovery.SaveEach(ctx, c.Store, c.Path, c.Log) })
	return g.Wait()
}

// followMasters follows one master after the other until ctx ends.
func (c *Copier) followMasters(ctx context.Context) error {
	failed := discovery.LogFailures(c.Log, "copy of the master")
	for range wait.Ticks(ctx, checkEach) {
		conn := c.Master()
		if conn == nil {
			continue
		}
		if err := c.follow(ctx, conn); err != nil && ctx.Err() == nil {
			failed(err)
		}
	}
	return nil
}

// follow follows a master until the stream breaks or another server is the master.
func (c *Copier) follow(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range wait.Ticks(ctx, checkEach) {
			if c.Master() != conn {
				cancel()
			}
		}
	}()
	c.Store.Lead(false)
	source := &discovery.Source{
		Client: nusav1.NewDiscoveryClient(conn), Store: c.Store, Own: c.Region,
		Roster: c.Store.SetRoster, Up: c.Store.Connected, Down: c.Store.Disconnected,
	}
	err := source.Follow(ctx)
	cancel()
	<-done
	return err
}
