package operator

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// ring is a ring of keys that commands show and change.
type ring struct {
	s    *cli.Settings
	name string
}

// ringCommand returns the commands of a ring.
func ringCommand(s *cli.Settings, name, short string) *cobra.Command {
	r := &ring{s, name}
	c := cli.Noun(name, short, r.status(), r.step("install"), r.step("use"), r.step("remove"))
	c.Long = short + `.
A key is replaced in three steps, while work runs: install gives a new key to each
server, use lets each server use it, and remove takes the old key away. The next step
is refused while a server does not have the keys of the step before: status names
these servers. With --force the step begins all the same.`
	return c
}

// region returns the region of the ring.
func (r *ring) region(c *cli.Session) (string, error) {
	if r.name != "gossip" {
		return "", nil
	}
	if c.Region == "" {
		return "", errors.New("--region is required: each region has its own keys of gossip")
	}
	return c.Region, nil
}

func (r *ring) bind(c *cobra.Command) *cobra.Command {
	if r.name == "gossip" {
		r.s.BindRegion(c, "region of the keys (required)")
	}
	return c
}

func (r *ring) status() *cobra.Command {
	return r.bind(&cobra.Command{
		Use: "status", Short: "Show the keys by name, and which servers do not have them", Args: cli.Positional(),
		RunE: r.s.Run(func(c *cli.Session, _ []string) error {
			region, err := r.region(c)
			if err != nil {
				return err
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			out, err := nusav1.NewKeysClient(c.Conn).GetRing(ctx, &nusav1.GetRingRequest{Ring: r.name, Region: region})
			if err != nil {
				return err
			}
			return c.Print(out, func(w *term.Screen) { printRing(w, out) })
		}),
	})
}

func printRing(w *term.Screen, out *nusav1.RingStatus) {
	if len(out.GetKeys()) == 0 {
		fmt.Fprintln(w, "the federation keeps no such keys; servers may have some in their own settings")
		return
	}
	t := term.NewTable("KEY", "USE")
	for i, id := range out.GetKeys() {
		use := "accepted"
		if i == 0 {
			use = "in use"
		}
		t.Row(id, use)
	}
	t.Write(w)
	fmt.Fprintf(w, "servers: %d have these keys, %d do not\n", out.GetConverged(), out.GetWaiting())
	printLags(w, out.GetLags())
}

// shorts are the short helps of the steps.
var shorts = map[string]string{
	"install": "Give a new key to each server",
	"use":     "Let each server use a key that was installed",
	"remove":  "Take a key away that is not in use",
}

func (r *ring) step(step string) *cobra.Command {
	req := &nusav1.ChangeRingRequest{Ring: r.name, Step: step}
	var file string
	spread := time.Minute
	c := &cobra.Command{
		Use: step, Short: shorts[step], Args: cli.Positional(),
		RunE: r.s.Run(func(c *cli.Session, _ []string) error {
			var err error
			req.Region, err = r.region(c)
			if err != nil {
				return err
			}
			req.Key, err = readKey(file)
			if err != nil {
				return err
			}
			req.Spread = durationpb.New(spread)
			ctx, cancel := c.WithTimeout()
			defer cancel()
			out, err := nusav1.NewKeysClient(c.Conn).ChangeRing(ctx, req)
			if err != nil {
				return err
			}
			return c.Print(out, func(w *term.Screen) { printRing(w, out) })
		}),
	}
	f := c.Flags()
	if step == "install" {
		f.StringVar(&file, "key-file", "", "file of the new key in base64 (default: the server makes one)")
	} else {
		f.StringVar(&req.Id, "id", "", "name of the key (default: the only one that is possible)")
		f.BoolVar(&req.Force, "force", false, "go on although servers do not have the keys of the step before")
	}
	spreadFlag(c, &spread, "time within which the servers get the keys")
	return r.bind(c)
}

// readKey reads a key in base64. Without a file the result is empty. An error never has a part of
// the key.
func readKey(file string) ([]byte, error) {
	text, err := readFile("--key-file", file)
	if err != nil || len(text) == 0 {
		return nil, err
	}
	key, err := base64.StdEncoding.DecodeString(string(bytes.TrimSpace(text)))
	if err != nil {
		return nil, fmt.Errorf("--key-file: %s is not one key in base64", file)
	}
	return key, nil
}
