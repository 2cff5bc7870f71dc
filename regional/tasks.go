package regional

import (
	"slices"

	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/regional/tasks"
	"github.com/nusa-scheduler/nusa/security/identity"
)

// taskRecorder returns the writer of the history of tasks.
func taskRecorder(s *server) *tasks.Recorder {
	path := ""
	if s.dir != nil {
		path = s.dir.Path("history", "tasks")
	}
	return &tasks.Recorder{
		Log: s.fsm, Region: s.cfg.Region.GetName(), Logger: s.cfg.Logger, Store: tasks.NewStore(path, s.cfg.TaskHistory, s.cfg.Logger),
	}
}

// taskFiller returns what copies the gaps of the history of tasks from the other servers.
func taskFiller(s *server) *tasks.Filler {
	return &tasks.Filler{
		Store: s.tasks.Store, Logger: s.cfg.Logger,
		Others: func() (out []string) {
			for _, m := range s.gossip.Members() {
				if m.Alive && m.ID != s.id && m.GRPC != "" {
					out = append(out, m.GRPC)
				}
			}
			slices.Sort(out)
			return out
		},
		Dial: func(address string) (*grpc.ClientConn, error) {
			return serve.Dial(s.cfg.Net, address, s.cfg.Identity.Dial(identity.ServersOf(s.cfg.Region.GetName())))
		},
	}
}
