// Package uplink holds a region's session with the global tier during one term of a master.
// The global tier sends slot orders. The region sends slot answers, summaries, reports and
// latencies.
//
//	uplink        Uplink: finds the active global server and holds one session
//	session       one session: sends, receives and ends
//	receive       handles the messages of the global tier
//	lease         commits the content of a welcome; the region's lease
//	auth          stores who may do what, and tells the global tier what is stored
//	keys          stores which roots and keys the members of the region should have
//	orders        turns slot orders into commands of the log
//	send          sends the messages to the global tier when they are due
//	output        the outputs of jobs of steps of workflows
//	sendreport    decides when a report is sent, and sends changed forms before it
//	forms         which config the plugins of the nodes accept
//	sendrow       sends the changes of the row of round trips
//	asks          the asks whose fit counts are reported
//	summaries     which summaries of jobs have changed
//	reporter      Reporter: reports of the region, from the state and the newest plan
//	summary       Reporter: summaries of jobs, and the reasons of their groups
//	disconnected  instances that may still run on lost nodes
package uplink
