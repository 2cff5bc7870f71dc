package alloc

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// filesHelp is the help text about paths of an allocation's files.
const filesHelp = `A path begins with shared/, the folder $NUSA_ALLOC_DIR of all tasks, or with tasks/NAME/,
the folder $NUSA_TASK_DIR of one task. Secrets are not in these folders, and a link that leads out of
them is not followed. The agent keeps the folders of ended allocations until it needs the space.

` + instanceHelp

func filesCommand(s *cli.Settings) *cobra.Command {
	c := cli.Noun("fs", "List, show and copy the files of one allocation", listFilesCommand(s), catCommand(s), copyCommand(s))
	cli.Instead(c, "alloc fs cp", "cp")
	cli.Instead(c, "alloc fs cat", "cat")
	c.Long = "Lists, shows and copies the files of one allocation.\n\n" + filesHelp
	return c
}

func listFilesCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "ls ID|JOB [PATH]", Short: "List a folder of one allocation", Args: cli.Positional("ID|JOB", "[PATH]"),
		Long:    "Lists a folder of one allocation.\n\n" + filesHelp,
		Example: "  nusa alloc fs ls 1f3a\n  nusa alloc fs ls hello/greeter/0 tasks/greet",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ctx, cancel := c.WithTimeout()
			defer cancel()
			a, err := findAlloc(ctx, c, args[0])
			if err != nil {
				return err
			}
			r, err := c.Allocs().ListFiles(ctx, &nusav1.ListFilesRequest{Allocation: a.GetId(), Path: pathOf(args), Limit: maxListed})
			if err != nil {
				return err
			}
			if r.GetTruncated() {
				c.Warn("%s has more than %d entries: only these are shown", r.GetFile().GetName(), maxListed)
			}
			return c.Print(r, func(w *term.Screen) { writeFiles(w, r) })
		}),
	}
}

// pathOf returns the second argument, or the allocation's folder.
func pathOf(args []string) string {
	if len(args) < 2 {
		return "."
	}
	return args[1]
}

func writeFiles(w *term.Screen, r *nusav1.ListFilesResponse) {
	t := term.NewTable("MODE", ">SIZE", ">MODIFIED", "NAME")
	entries := r.GetEntries()
	if !r.GetFile().GetFolder() {
		entries = []*nusav1.FileInfo{r.GetFile()}
	}
	for _, f := range entries {
		name, size := term.OneLine(f.GetName()), term.Size(f.GetSize())
		if f.GetFolder() {
			name, size = name+"/", ""
		}
		t.Row(f.GetMode(), size, w.Since(f.GetModified())+" ago", name)
	}
	t.Write(w)
}

func catCommand(s *cli.Settings) *cobra.Command {
	var offset, limit int64
	c := &cobra.Command{
		Use: "cat ID|JOB PATH", Short: "Print a file of one allocation", Args: cli.Positional("ID|JOB", "PATH"),
		Long:    "Prints a file of one allocation, up to its size at the beginning of the command.\n\n" + filesHelp,
		Example: "  nusa alloc fs cat 1f3a tasks/greet/app.conf\n  nusa alloc fs cat hello/greeter/0 shared/out.log --limit 1000",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			if c.Output != "table" {
				return errors.New("--output: alloc fs cat prints the file as it is")
			}
			ctx, cancel := c.WithTimeout()
			a, err := findAlloc(ctx, c, args[0])
			cancel()
			if err != nil {
				return err
			}
			_, err = readFile(c.Ctx, c, &nusav1.ReadFileRequest{Allocation: a.GetId(), Path: args[1], Offset: offset, Limit: limit}, c.Out)
			return err
		}),
	}
	c.Flags().Int64Var(&offset, "offset", 0, "first byte")
	c.Flags().Int64Var(&limit, "limit", 0, "greatest number of bytes; 0: to the end")
	return c
}

// readFile copies a file of an allocation into to, and returns the number of bytes.
func readFile(ctx context.Context, c *cli.Session, req *nusav1.ReadFileRequest, to io.Writer) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream when to fails
	stream, err := c.Allocs().ReadFile(ctx, req)
	if err != nil {
		return 0, err
	}
	n, size := int64(0), int64(-1)
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			if want := wanted(req, size); n < want {
				return n, fmt.Errorf("%s: became shorter while it was read: %d of %d bytes", req.GetPath(), n, want)
			}
			return n, nil
		case err != nil:
			return n, err
		}
		if m.GetFile() != nil {
			size = m.GetFile().GetSize()
		}
		if _, err := to.Write(m.GetData()); err != nil {
			return n, err
		}
		n += int64(len(m.GetData()))
	}
}

// wanted returns the number of bytes that a request selects in a file of a size.
func wanted(req *nusav1.ReadFileRequest, size int64) int64 {
	n := max(0, size-req.GetOffset())
	if req.GetLimit() > 0 {
		n = min(n, req.GetLimit())
	}
	return n
}
