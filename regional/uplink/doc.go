// Package uplink is a region's session with the global tier during one term of a
// master: slot orders come down; answers, summaries, reports and latencies go up.
//
//	uplink        Uplink: finds the active global server and holds one session
//	session       one session: sends, receives and ends
//	receive       messages of the global tier
//	lease         what the welcome said, committed first; the region's lease
//	orders        slot orders as commands of the log
//	send          the messages to the global tier, and when they are due
//	sendreport    when a report is sent
//	sendrow       the row of round trips
//	asks          asks whose fit is reported
//	summaries     which summaries of jobs have changed
//	reporter      Reporter: reports of the region, from the state and the newest plan
//	summary       Reporter: summaries of jobs, and the reasons of their groups
//	disconnected  instances that may still run on lost nodes
package uplink
