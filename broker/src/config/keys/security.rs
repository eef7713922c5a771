//! Keys of the `[security]` section: every one that protects is refused until it is built.

use super::broker_table;

const AUTHORIZER: &str = "authorisation is not built yet";
const SASL_WHY: &str = "SASL is not built yet";
const SSL_WHY: &str = "TLS is not built yet";
const TOKENS: &str = "delegation tokens are not built yet";
const UNUSED: &str = "it has no use without SASL, which is not built yet";
const PASSWORDS: &str = "no secrets are stored yet";

broker_table!(SECURITY, Security, {
    "authorizer.class.name": String = "", any, fixed, (refused AUTHORIZER),
        "Who decides what clients may do; kafka.security.authorizer.AclAuthorizer is the built-in one.";
    "super.users": String = "", any, unlisted, (refused AUTHORIZER),
        "Principals that may do everything, separated by semicolons.";
    "allow.everyone.if.no.acl.found": Boolean = "false", any, unlisted, (no_effect AUTHORIZER),
        "Whether a resource without a rule is open to all.";
    "principal.builder.class": Class = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder", any, broker, (refused "classes cannot be loaded"),
        "Class that names the principal of a connection.";
    "security.providers": String = null, any, fixed, (refused "classes cannot be loaded"),
        "Classes that provide security algorithms.";
    "password.encoder.secret": Password = null, any, fixed, (no_effect PASSWORDS),
        "Secret by which stored passwords are encrypted.";
    "password.encoder.old.secret": Password = null, any, fixed, (no_effect PASSWORDS),
        "Secret by which they were encrypted before.";
    "password.encoder.keyfactory.algorithm": String = null, any, fixed, (no_effect PASSWORDS),
        "Algorithm that makes a key of the secret.";
    "password.encoder.cipher.algorithm": String = "AES/CBC/PKCS5Padding", any, fixed, (no_effect PASSWORDS),
        "Cipher of stored passwords.";
    "password.encoder.key.length": Int = "128", (>= 8), fixed, (no_effect PASSWORDS),
        "Bits of that cipher's key.";
    "password.encoder.iterations": Int = "4096", (>= 1024), fixed, (no_effect PASSWORDS),
        "Rounds that make a key of the secret.";
    "delegation.token.secret.key": Password = null, any, fixed, (refused TOKENS),
        "Secret by which delegation tokens are signed.";
    "delegation.token.master.key": Password = null, any, fixed, (refused TOKENS),
        "Older name of that secret.";
    "delegation.token.max.lifetime.ms": Long = "604800000", (>= 1), fixed, (no_effect TOKENS),
        "Milliseconds after which a token can no longer be renewed.";
    "delegation.token.expiry.time.ms": Long = "86400000", (>= 1), fixed, (no_effect TOKENS),
        "Milliseconds between two renewals of a token.";
    "delegation.token.expiry.check.interval.ms": Long = "3600000", (>= 1), fixed, (no_effect TOKENS),
        "Milliseconds between two looks for tokens to remove.";
});

broker_table!(SASL, Security, {
    "connections.max.reauth.ms": Long = "0", any, fixed, (refused SASL_WHY),
        "Milliseconds after which a client must authenticate again; 0 is never.";
    "sasl.enabled.mechanisms": List = "GSSAPI", any, broker, (refused SASL_WHY),
        "Ways to authenticate that are offered.";
    "sasl.mechanism.inter.broker.protocol": String = "GSSAPI", any, broker, (refused SASL_WHY),
        "Way to authenticate among brokers.";
    "sasl.jaas.config": Password = null, any, broker, (refused SASL_WHY),
        "Login module and its options.";
    "sasl.server.callback.handler.class": Class = null, any, fixed, (refused SASL_WHY),
        "Class that checks credentials.";
    "sasl.client.callback.handler.class": Class = null, any, fixed, (refused SASL_WHY),
        "Class that supplies credentials to other brokers.";
    "sasl.login.class": Class = null, any, fixed, (refused SASL_WHY),
        "Class that logs in.";
    "sasl.login.callback.handler.class": Class = null, any, fixed, (refused SASL_WHY),
        "Class that supplies what a login needs.";
    "sasl.server.max.receive.size": Int = "524288", any, fixed, (no_effect UNUSED),
        "Largest authentication message in bytes.";
    "sasl.kerberos.service.name": String = null, any, broker, (refused SASL_WHY),
        "Kerberos name of the service.";
    "sasl.kerberos.principal.to.local.rules": List = "DEFAULT", any, broker, (refused SASL_WHY),
        "Rules that make a short name of a Kerberos principal.";
    "sasl.oauthbearer.jwks.endpoint.url": String = null, any, fixed, (refused SASL_WHY),
        "Where the keys that sign tokens are published.";
    "sasl.oauthbearer.token.endpoint.url": String = null, any, fixed, (refused SASL_WHY),
        "Where tokens are issued.";
    "sasl.oauthbearer.expected.audience": List = null, any, fixed, (refused SASL_WHY),
        "Audiences of which a token must name one.";
    "sasl.oauthbearer.expected.issuer": String = null, any, fixed, (refused SASL_WHY),
        "Issuer that a token must name.";
    "sasl.oauthbearer.clock.skew.seconds": Int = "30", any, fixed, (no_effect UNUSED),
        "Seconds by which clocks may differ when a token is checked.";
    "sasl.oauthbearer.scope.claim.name": String = "scope", any, fixed, (no_effect UNUSED),
        "Name of the claim that holds a token's scope.";
    "sasl.oauthbearer.sub.claim.name": String = "sub", any, fixed, (no_effect UNUSED),
        "Name of the claim that holds a token's subject.";
    "sasl.mechanism.controller.protocol": String = "GSSAPI", any, fixed, (no_effect UNUSED),
        "Way to authenticate to a KRaft controller.";
    "sasl.kerberos.kinit.cmd": String = "/usr/bin/kinit", any, broker, (no_effect UNUSED),
        "Command that fetches Kerberos tickets.";
    "sasl.kerberos.min.time.before.relogin": Long = "60000", any, broker, (no_effect UNUSED),
        "Milliseconds between two Kerberos logins at least.";
    "sasl.kerberos.ticket.renew.jitter": Double = "0.05", any, broker, (no_effect UNUSED),
        "Share by which the time of a Kerberos renewal varies.";
    "sasl.kerberos.ticket.renew.window.factor": Double = "0.8", any, broker, (no_effect UNUSED),
        "Share of a Kerberos ticket's life after which it is renewed.";
    "sasl.login.refresh.buffer.seconds": Short = "300", any, broker, (no_effect UNUSED),
        "Seconds before a token ends by which it is renewed at the latest.";
    "sasl.login.refresh.min.period.seconds": Short = "60", any, broker, (no_effect UNUSED),
        "Seconds between two renewals of a token at least.";
    "sasl.login.refresh.window.factor": Double = "0.8", any, broker, (no_effect UNUSED),
        "Share of a token's life after which it is renewed.";
    "sasl.login.refresh.window.jitter": Double = "0.05", any, broker, (no_effect UNUSED),
        "Share by which the time of a token's renewal varies.";
    "sasl.login.connect.timeout.ms": Int = null, any, fixed, (no_effect UNUSED),
        "Milliseconds to wait for a connection to the issuer of tokens.";
    "sasl.login.read.timeout.ms": Int = null, any, fixed, (no_effect UNUSED),
        "Milliseconds to wait for an answer of the issuer of tokens.";
    "sasl.login.retry.backoff.ms": Long = "100", any, fixed, (no_effect UNUSED),
        "Milliseconds before the issuer of tokens is asked again, at first.";
    "sasl.login.retry.backoff.max.ms": Long = "10000", any, fixed, (no_effect UNUSED),
        "Milliseconds before the issuer of tokens is asked again, at most.";
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": Long = "3600000", any, fixed, (no_effect UNUSED),
        "Milliseconds after which the published keys are fetched again.";
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": Long = "100", any, fixed, (no_effect UNUSED),
        "Milliseconds before the published keys are asked for again, at first.";
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": Long = "10000", any, fixed, (no_effect UNUSED),
        "Milliseconds before the published keys are asked for again, at most.";
});

broker_table!(SSL, Security, {
    "ssl.keystore.type": String = "JKS", any, broker, (refused SSL_WHY),
        "Format of the key store.";
    "ssl.keystore.location": String = null, any, broker, (refused SSL_WHY),
        "File of the broker's key and certificates.";
    "ssl.keystore.password": Password = null, any, broker, (refused SSL_WHY),
        "Password of that file.";
    "ssl.key.password": Password = null, any, broker, (refused SSL_WHY),
        "Password of the key in it.";
    "ssl.keystore.key": Password = null, any, broker, (refused SSL_WHY),
        "The broker's key as PEM text.";
    "ssl.keystore.certificate.chain": Password = null, any, broker, (refused SSL_WHY),
        "The broker's certificates as PEM text.";
    "ssl.truststore.type": String = "JKS", any, broker, (refused SSL_WHY),
        "Format of the trust store.";
    "ssl.truststore.location": String = null, any, broker, (refused SSL_WHY),
        "File of the certificates that are trusted.";
    "ssl.truststore.password": Password = null, any, broker, (refused SSL_WHY),
        "Password of that file.";
    "ssl.truststore.certificates": Password = null, any, broker, (refused SSL_WHY),
        "The certificates that are trusted as PEM text.";
    "ssl.client.auth": String = "none", (one_of "required" "requested" "none"), broker, (refused SSL_WHY),
        "Whether clients must show a certificate.";
    "ssl.protocol": String = "TLSv1.3", any, broker, (refused SSL_WHY),
        "Version of TLS that is preferred.";
    "ssl.enabled.protocols": List = "TLSv1.2,TLSv1.3", any, broker, (refused SSL_WHY),
        "Versions of TLS that are allowed.";
    "ssl.cipher.suites": List = "", any, broker, (refused SSL_WHY),
        "Ciphers that are allowed; the library's choice if empty.";
    "ssl.endpoint.identification.algorithm": String = "https", any, broker, (no_effect SSL_WHY),
        "How the host name of another broker is checked.";
    "ssl.principal.mapping.rules": String = "DEFAULT", any, fixed, (refused SSL_WHY),
        "Rules that make a principal of a certificate's subject.";
    "ssl.allow.dn.changes": Boolean = "false", any, fixed, (no_effect SSL_WHY),
        "Whether a reloaded certificate may have another subject.";
    "ssl.allow.san.changes": Boolean = "false", any, fixed, (no_effect SSL_WHY),
        "Whether a reloaded certificate may have fewer names.";
    "ssl.provider": String = null, any, broker, (refused "classes cannot be loaded"),
        "Class that provides TLS.";
    "ssl.engine.factory.class": Class = null, any, broker, (refused "classes cannot be loaded"),
        "Class that makes TLS engines.";
    "ssl.keymanager.algorithm": String = "SunX509", any, broker, (no_effect SSL_WHY),
        "Java's algorithm for keys.";
    "ssl.trustmanager.algorithm": String = "PKIX", any, broker, (no_effect SSL_WHY),
        "Java's algorithm for trust.";
    "ssl.secure.random.implementation": String = null, any, broker, (no_effect SSL_WHY),
        "Java's source of random numbers.";
});
